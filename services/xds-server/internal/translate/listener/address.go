package listener

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/serviceaddress"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

// privileged ports cannot be bound by a proxy without rights; listeners on them exist only where a user asks for one.
const privileged = 1024

// servicePort is a port of a service.
type servicePort = serviceaddress.ServicePort

// shared is what the services at one place need of its listener.
type addressChains struct {
	serviceaddress.EndpointAddress
	bound bool
}

// addressListenerNames lists the places where clients connect to a service, unless the Sidecar has no listener without a port.
func addressListenerNames(r *input.Reader, svc *configv1.Service) []string {
	egress, ok := sidecarscope.ImplicitEgress(r)
	if !ok || svc == nil || egress != nil && !r.Admits(egress, svc) {
		return nil
	}
	var out []string
	for _, port := range svc.GetPorts() {
		if !protocol.IsProxied(port.GetProtocol()) {
			continue
		}
		for _, address := range addresses(r, servicePort{Service: svc, Port: port}) {
			out = append(out, resourcename.Listener(address, port.GetNumber()))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// addresses lists the addresses of the listeners that a service port needs. Where nothing is captured, only HTTP has listeners.
func addresses(r *input.Reader, m servicePort) []string {
	switch {
	case sidecarscope.ImplicitBindsToPort(r):
		if protocol.MayBeHTTP(m.Port.GetProtocol()) && bindable(r, m.Port.GetNumber()) {
			return []string{loopback}
		}
		return nil
	case r.Class().OnDemand:
		return onDemandAddresses(r, m)
	default:
		return serviceaddress.Addresses(r, m)
	}
}

// bindable tells whether the proxy may listen on a port of loopback that nobody asked for: not where the application itself listens.
func bindable(r *input.Reader, port uint32) bool {
	return port >= privileged && !slices.ContainsFunc(r.Targets(), func(t class.Target) bool { return t.TargetPort == port })
}

// implicit builds the listener of a place; nil if no service needs one there. It asks about that place alone.
func addressListener(r *input.Reader, name string) (*listenerv3.Listener, error) {
	address, port, ok := resourcename.ParseListener(name)
	if !ok {
		return nil, nil
	}
	egress, ok := sidecarscope.ImplicitEgress(r)
	if !ok {
		return nil, nil
	}
	if sidecarscope.ImplicitBindsToPort(r) {
		s := &addressChains{EndpointAddress: serviceaddress.EndpointAddress{Address: address, Port: port}, bound: true}
		if address == loopback && bindable(r, port) && r.Speaks(egress, port, protocol.WithRoutes...) {
			return outbound(r, s)
		}
		return nil, nil
	}
	if r.Class().OnDemand {
		return onDemand(r, address, port)
	}
	s := &addressChains{EndpointAddress: serviceaddress.At(r, address, port)}
	s.HTTP = s.HTTP || address == wildcard && r.Speaks(egress, port, protocol.HTTP...)
	if s.Empty() {
		return nil, nil
	}
	return outbound(r, s)
}
