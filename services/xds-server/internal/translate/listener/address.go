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

// firstUnprivilegedPort is the first port that a process without privileges can bind. Lower ports have listeners only
// where a Sidecar asks for them.
const firstUnprivilegedPort = 1024

type servicePort = serviceaddress.ServicePort

// addressChains has the service ports that a listener's filter chains are for.
type addressChains struct {
	serviceaddress.EndpointAddress
	bound bool
}

// addressListenerNames lists the listeners for a service: one per address and port. There are none if the Sidecar has
// no egress listener without a port.
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

// addresses lists the addresses of the listeners for a service port. Without redirected traffic only HTTP has
// listeners, on loopback.
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

// bindable reports whether a listener for a service may bind a port of loopback: not a privileged port, nor a port of
// the application.
func bindable(r *input.Reader, port uint32) bool {
	return port >= firstUnprivilegedPort && !slices.ContainsFunc(r.Targets(), func(t class.Target) bool { return t.TargetPort == port })
}

// addressListener builds the listener of an address and port, or returns nil if no service needs one there. It reads
// nothing about other addresses.
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
