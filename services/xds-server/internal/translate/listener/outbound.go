package listener

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/names"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/scope"
)

// privileged ports cannot be bound by a proxy without rights; listeners on them exist only where a user asks for one.
const privileged = 1024

// member is a port of a service.
type member struct {
	service *configv1.Service
	port    *configv1.ServicePort
}

// place is an address and port that applications connect to.
type place struct {
	address string
	port    uint32
}

// shared is what the services at one place need of its listener.
type shared struct {
	place
	bound bool
	// http is true if requests are routed by their host, with the port's route configuration.
	http bool
	// sniffed is the only service at the place, of undeclared protocol.
	sniffed *member
	// tls are told apart by SNI, networks by destination.
	tls []member
	// tcp takes all other bytes; the oldest service wins.
	tcp *member
}

func (s *shared) offerTCP(m member) {
	if s.tcp == nil || m.service.GetCreationTime().AsTime().Before(s.tcp.service.GetCreationTime().AsTime()) {
		s.tcp = &m
	}
}

// planImplicit lists the listeners of all services on their own ports; only narrows to one port, 0 means all.
func planImplicit(r *input.Reader, only uint32) []planned {
	services, ok := scope.Implicit(r)
	if !ok {
		return nil
	}
	places := map[place]*shared{}
	at := func(address string, port uint32) *shared {
		p := place{address, port}
		if places[p] == nil {
			places[p] = &shared{place: p}
		}
		return places[p]
	}
	captured := r.Class().Interception != class.None
	for _, svc := range services {
		for _, port := range svc.GetPorts() {
			if only != 0 && port.GetNumber() != only || !protocol.IsProxied(port.GetProtocol()) {
				continue
			}
			m := member{svc, port}
			if !captured {
				if protocol.MayBeHTTP(port.GetProtocol()) && port.GetNumber() >= privileged {
					s := at(loopback, port.GetNumber())
					s.http, s.bound = true, true
				}
				continue
			}
			join(r, at, m)
		}
	}
	ordered := make([]*shared, 0, len(places))
	for _, s := range places {
		ordered = append(ordered, s)
	}
	slices.SortFunc(ordered, func(a, b *shared) int {
		return cmp.Or(strings.Compare(a.address, b.address), cmp.Compare(a.port, b.port))
	})
	out := make([]planned, 0, len(ordered))
	for _, s := range ordered {
		out = append(out, planned{names.Listener(s.address, s.port), func() (*listenerv3.Listener, error) { return outbound(r, s) }})
	}
	return out
}

// join puts a service port where its clients connect to. Declared HTTP shares one listener per port number, because the request's host says
// the rest; other bytes are told apart by the address, or on the shared listener by SNI.
func join(r *input.Reader, at func(string, uint32) *shared, m member) {
	number, p := m.port.GetNumber(), m.port.GetProtocol()
	if protocol.IsHTTP(p) {
		at(wildcard, number).http = true
		return
	}
	for _, address := range vips(r, m) {
		s := at(address, number)
		switch {
		case protocol.IsSniffed(p) && address != wildcard:
			s.sniffed = &m
		case protocol.IsSniffed(p):
			s.http = true
			s.offerTCP(m)
		case protocol.IsTLS(p) && address == wildcard:
			s.tls = append(s.tls, m)
		default:
			s.offerTCP(m)
		}
	}
}

// vips lists where clients connect to: the service's addresses; the Pods' of a headless service; else everywhere.
func vips(r *input.Reader, m member) []string {
	var out []string
	add := func(address string) {
		if ip, err := netip.ParseAddr(address); err == nil && !ip.IsUnspecified() && !slices.Contains(out, ip.String()) {
			out = append(out, ip.String())
		}
	}
	for _, address := range slices.Concat(m.service.GetAddresses(), m.service.GetAutoAddresses()) {
		add(address)
	}
	if len(out) == 0 && m.service.GetHeadless() && !protocol.IsTLS(m.port.GetProtocol()) {
		for _, shard := range r.Endpoints(m.service.GetHostname(), m.port.GetNumber()) {
			for _, e := range shard.GetEndpoints() {
				add(e.GetAddress())
			}
		}
		// A headless service without Pods has nothing to connect to, and must not take the shared listener from others.
		return out
	}
	if len(out) == 0 {
		return []string{wildcard}
	}
	return out
}

// outbound builds the listener of a place.
func outbound(r *input.Reader, s *shared) (*listenerv3.Listener, error) {
	out := base(r, names.Listener(s.address, s.port), s.address, s.port, corev3.TrafficDirection_OUTBOUND)
	if s.bound {
		filters, err := outboundHTTP(r, out.GetName(), names.OutboundRoute(s.port))
		if err != nil {
			return nil, err
		}
		out.FilterChains = []*listenerv3.FilterChain{{Filters: filters}}
		return out, nil
	}
	out.BindToPort = wrapperspb.Bool(false)
	if s.http || s.sniffed != nil {
		routeName := names.OutboundRoute(s.port)
		if s.sniffed != nil {
			routeName = names.SniffedRoute(s.sniffed.service.GetHostname(), s.port)
		}
		filters, err := outboundHTTP(r, out.GetName(), routeName)
		if err != nil {
			return nil, err
		}
		out.FilterChains = append(out.FilterChains, &listenerv3.FilterChain{
			FilterChainMatch: &listenerv3.FilterChainMatch{TransportProtocol: rawTransport, ApplicationProtocols: plainHTTP},
			Filters:          filters,
		})
		out.ListenerFilters = []*listenerv3.ListenerFilter{tlsInspector(nil), httpInspector(nil)}
	}
	if err := opaque(r, out, s); err != nil {
		return nil, err
	}
	if needsTLSInspector(out) && len(out.GetListenerFilters()) == 0 {
		out.ListenerFilters = []*listenerv3.ListenerFilter{tlsInspector(nil)}
	}
	return out, nil
}

// opaque adds the chains for what is not HTTP.
func opaque(r *input.Reader, out *listenerv3.Listener, s *shared) error {
	taken := claims{}
	add := func(m member, bySNI bool) error {
		found, err := memberChains(r, m, bySNI)
		taken.append(out, found)
		return err
	}
	slices.SortStableFunc(s.tls, func(a, b member) int {
		return a.service.GetCreationTime().AsTime().Compare(b.service.GetCreationTime().AsTime())
	})
	for _, m := range s.tls {
		if err := add(m, true); err != nil {
			return err
		}
	}
	rest := s.tcp
	if rest == nil {
		rest = s.sniffed
	}
	if rest != nil {
		if err := add(*rest, false); err != nil {
			return err
		}
	}
	if out.GetDefaultFilterChain() == nil {
		chain, err := passthroughChain(r, "PassthroughFilterChain")
		if err != nil {
			return err
		}
		out.DefaultFilterChain = chain
	}
	return nil
}

// needsTLSInspector tells whether a chain looks at the handshake.
func needsTLSInspector(l *listenerv3.Listener) bool {
	return slices.ContainsFunc(l.GetFilterChains(), func(c *listenerv3.FilterChain) bool {
		return c.GetFilterChainMatch().GetTransportProtocol() == tlsTransport
	})
}

func outboundHTTP(r *input.Reader, name, routeName string) ([]*listenerv3.Filter, error) {
	return httpFilters(hcm.Options{
		Role: hcm.SidecarOutbound, StatPrefix: "outbound_" + name, RouteName: routeName, Mesh: r.Mesh(),
	})
}

// planProxy lists the mesh's forward proxy listener, if it has one.
func planProxy(r *input.Reader) []planned {
	number := r.Mesh().GetProxyHttpPort()
	if number <= 0 {
		return nil
	}
	name := names.Listener(loopback, uint32(number))
	return []planned{{name, func() (*listenerv3.Listener, error) {
		return boundHTTP(r, name, loopback, uint32(number), names.HTTPProxyRoute)
	}}}
}

// planExplicit lists the Sidecar's egress listeners that name a port.
func planExplicit(r *input.Reader) []planned {
	var out []planned
	for _, e := range scope.ExplicitListeners(r) {
		bind := e.Bind
		if bind == "" {
			bind = wildcard
		}
		name := names.Listener(bind, e.Port)
		out = append(out, planned{name, func() (*listenerv3.Listener, error) { return explicit(r, e, name, bind) }})
	}
	return out
}

func explicit(r *input.Reader, e scope.Explicit, name, bind string) (*listenerv3.Listener, error) {
	if protocol.MayBeHTTP(e.Protocol) || e.Protocol == configv1.Protocol_PROTOCOL_HTTP_PROXY {
		out, err := boundHTTP(r, name, bind, e.Port, e.Route)
		if err == nil && !e.BindToPort {
			out.BindToPort = wrapperspb.Bool(false)
		}
		return out, err
	}
	out := base(r, name, bind, e.Port, corev3.TrafficDirection_OUTBOUND)
	if !e.BindToPort {
		out.BindToPort = wrapperspb.Bool(false)
	}
	m, ok := destination(r, e)
	if !ok {
		filters, err := tcpProxy(r, names.BlackHoleCluster, names.BlackHoleCluster)
		out.FilterChains = []*listenerv3.FilterChain{{Filters: filters}}
		return out, err
	}
	s := &shared{place: place{bind, e.Port}, tcp: &m}
	if err := opaque(r, out, s); err != nil {
		return nil, err
	}
	if needsTLSInspector(out) {
		out.ListenerFilters = []*listenerv3.ListenerFilter{tlsInspector(nil)}
	}
	return out, nil
}

// destination is the service behind a TCP egress listener: the first that has the port, or whose only port it stands for.
func destination(r *input.Reader, e scope.Explicit) (member, bool) {
	services := r.EgressServices(e.Egress)
	for _, svc := range services {
		if port := discovery.Port(svc, e.Port); port != nil {
			return member{svc, port}, true
		}
	}
	for _, svc := range services {
		if len(svc.GetPorts()) == 1 {
			return member{svc, svc.GetPorts()[0]}, true
		}
	}
	return member{}, false
}

// boundHTTP is a listener that carries nothing but HTTP.
func boundHTTP(r *input.Reader, name, address string, port uint32, routeName string) (*listenerv3.Listener, error) {
	filters, err := outboundHTTP(r, name, routeName)
	if err != nil {
		return nil, err
	}
	out := base(r, name, address, port, corev3.TrafficDirection_OUTBOUND)
	out.FilterChains = []*listenerv3.FilterChain{{Filters: filters}}
	return out, nil
}
