package listener

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/names"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/reach"
	"fairlead.dev/services/xds-server/internal/translate/scope"
)

// privileged ports cannot be bound by a proxy without rights; listeners on them exist only where a user asks for one.
const privileged = 1024

// member is a port of a service.
type member = reach.Member

// shared is what the services at one place need of its listener.
type shared struct {
	reach.Place
	bound bool
}

// implicitNames lists the places where clients connect to a service, unless the Sidecar has no listener without a port.
func implicitNames(r *input.Reader, svc *configv1.Service) []string {
	egress, ok := scope.ImplicitEgress(r)
	if !ok || svc == nil || egress != nil && !r.Admits(egress, svc) {
		return nil
	}
	var out []string
	for _, port := range svc.GetPorts() {
		if !protocol.IsProxied(port.GetProtocol()) {
			continue
		}
		for _, address := range addresses(r, member{Service: svc, Port: port}) {
			out = append(out, names.Listener(address, port.GetNumber()))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// addresses lists the addresses of the listeners that a service port needs. Where nothing is captured, only HTTP has listeners.
func addresses(r *input.Reader, m member) []string {
	switch {
	case scope.ImplicitBinds(r):
		if protocol.MayBeHTTP(m.Port.GetProtocol()) && bindable(r, m.Port.GetNumber()) {
			return []string{loopback}
		}
		return nil
	case r.Class().OnDemand:
		return onDemandAddresses(r, m)
	default:
		return reach.Addresses(r, m)
	}
}

// bindable tells whether the proxy may listen on a port of loopback that nobody asked for: not where the application itself listens.
func bindable(r *input.Reader, port uint32) bool {
	return port >= privileged && !slices.ContainsFunc(r.Targets(), func(t class.Target) bool { return t.TargetPort == port })
}

// implicit builds the listener of a place; nil if no service needs one there. It asks about that place alone.
func implicit(r *input.Reader, name string) (*listenerv3.Listener, error) {
	address, port, ok := names.ParseListener(name)
	if !ok {
		return nil, nil
	}
	egress, ok := scope.ImplicitEgress(r)
	if !ok {
		return nil, nil
	}
	if scope.ImplicitBinds(r) {
		s := &shared{Place: reach.Place{Address: address, Port: port}, bound: true}
		if address == loopback && bindable(r, port) && r.Speaks(egress, port, protocol.WithRoutes...) {
			return outbound(r, s)
		}
		return nil, nil
	}
	if r.Class().OnDemand {
		return onDemand(r, address, port)
	}
	s := &shared{Place: reach.At(r, address, port)}
	s.HTTP = s.HTTP || address == wildcard && r.Speaks(egress, port, protocol.HTTP...)
	if s.Empty() {
		return nil, nil
	}
	return outbound(r, s)
}
