package listener

import (
	"cmp"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/dynamicforwardproxy"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/serviceaddress"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

// outbound builds the listener of an address.
func outbound(r *input.Reader, s *addressChains) (*listenerv3.Listener, error) {
	out := newListener(r, resourcename.Listener(s.Address, s.Port), s.Address, s.Port, corev3.TrafficDirection_OUTBOUND)
	if s.bound {
		filters, err := outboundHTTP(r, out.GetName(), resourcename.OutboundRouteConfig(s.Port), r.ServicesAt(s.Port, mesh.Wherever))
		if err != nil {
			return nil, err
		}
		out.FilterChains = []*listenerv3.FilterChain{{Filters: filters}}
		return out, nil
	}
	out.BindToPort = wrapperspb.Bool(false)
	if s.HTTP || s.Sniffed != nil {
		routeName := resourcename.OutboundRouteConfig(s.Port)
		if s.Sniffed != nil {
			routeName = resourcename.SniffedRouteConfig(s.Sniffed.Service.GetHostname(), s.Port)
		}
		if err := plainHTTPChain(r, out, routeName, s.Port); err != nil {
			return nil, err
		}
	}
	if err := addTCPChains(r, out, s); err != nil {
		return nil, err
	}
	inspectTLS(out)
	return out, nil
}

func networksOf(m servicePort) []*corev3.CidrRange {
	return lists.Map(mesh.Networks(m.Service), cidr)
}

// plainHTTPChain adds the filter chain for plaintext HTTP, and the listener filters that detect it.
func plainHTTPChain(r *input.Reader, out *listenerv3.Listener, routeName string, port uint32) error {
	filters, err := outboundHTTP(r, out.GetName(), routeName, r.ServicesAt(port, mesh.Wherever))
	if err != nil {
		return err
	}
	out.FilterChains = append(out.FilterChains, &listenerv3.FilterChain{
		FilterChainMatch: &listenerv3.FilterChainMatch{TransportProtocol: rawTransport, ApplicationProtocols: plainHTTP},
		Filters:          filters,
	})
	out.ListenerFilters = []*listenerv3.ListenerFilter{tlsInspector(nil), httpInspector(nil)}
	return nil
}

// addTCPChains adds the filter chains for everything but HTTP.
func addTCPChains(r *input.Reader, out *listenerv3.Listener, s *addressChains) error {
	taken := usedMatches{}
	add := func(m servicePort, bySNI bool) error {
		found, err := servicePortChains(r, m, bySNI)
		taken.addChains(out, found)
		return err
	}
	byAge := func(a, b servicePort) int {
		return a.Service.GetCreationTime().AsTime().Compare(b.Service.GetCreationTime().AsTime())
	}
	slices.SortStableFunc(s.TLS, byAge)
	slices.SortStableFunc(s.CIDRs, byAge)
	for _, m := range s.TLS {
		if err := add(m, true); err != nil {
			return err
		}
	}
	if rest := s.Opaque(); rest != nil {
		if err := add(*rest, false); err != nil {
			return err
		}
	}
	taken.repeatInNarrowNetworks(out)
	if err := taken.addCIDRChains(r, out, s.CIDRs, s.HTTP); err != nil {
		return err
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

// addCIDRChains adds the filter chains of service ports with CIDR ranges, after all others: those services get all
// connections to their ranges. http is true if the listener's first filter chain is for HTTP; then HTTP is detected
// within the ranges, too.
func (c usedMatches) addCIDRChains(r *input.Reader, out *listenerv3.Listener, members []servicePort, http bool) error {
	for _, m := range members {
		found, err := cidrChains(r, m)
		if err != nil {
			return err
		}
		if http && protocol.IsSniffed(m.Port.GetProtocol()) {
			requests := out.GetFilterChains()[0]
			found = append(found, filterChain{match: proto.CloneOf(requests.GetFilterChainMatch()), filters: requests.GetFilters()})
			found[len(found)-1].match.PrefixRanges = networksOf(m)
		}
		c.addChains(out, found)
	}
	return nil
}

// cidrChains builds the filter chains of a service port, limited to its CIDR ranges.
func cidrChains(r *input.Reader, m servicePort) ([]filterChain, error) {
	found, err := servicePortChains(r, m, contract.IsTLS(m.Port.GetProtocol()))
	for i := range found {
		match := &listenerv3.FilterChainMatch{}
		if found[i].match != nil {
			match = proto.CloneOf(found[i].match)
		}
		if len(match.GetPrefixRanges()) == 0 {
			match.PrefixRanges = networksOf(m)
		}
		found[i].match = match
	}
	return found, err
}

// inspectTLS adds the TLS inspector if a filter chain matches TLS and the listener has no listener filter yet.
func inspectTLS(l *listenerv3.Listener) {
	if len(l.GetListenerFilters()) == 0 && slices.ContainsFunc(l.GetFilterChains(), func(c *listenerv3.FilterChain) bool {
		return c.GetFilterChainMatch().GetTransportProtocol() == tlsTransport
	}) {
		l.ListenerFilters = []*listenerv3.ListenerFilter{tlsInspector(nil)}
	}
}

// outboundHTTP builds the HTTP connection manager of an outbound listener.
func outboundHTTP(r *input.Reader, name, routeName string, services []*configv1.Service) ([]*listenerv3.Filter, error) {
	l, ok := sidecarscope.ForRouteConfig(r, routeName)
	o := hcm.Options{
		Role: hcm.SidecarOutbound, StatPrefix: "outbound_" + name, RouteName: routeName, OnDemand: r.Class().OnDemand,
		GRPCWeb: ok && l.Speaks(r, configv1.Protocol_PROTOCOL_GRPC_WEB),
		Mesh:    r.Mesh(), Headers: r.ProxyHeaders(),
	}
	if dynamicforwardproxy.Any(services) {
		o.Dynamic = dynamicforwardproxy.ForRequests(r)
	}
	return httpFilters(o)
}

// planForwardProxy lists the listener of the mesh's HTTP forward proxy, if MeshConfig has one.
func planForwardProxy(r *input.Reader) []planned {
	number := r.Mesh().GetProxyHttpPort()
	if number <= 0 {
		return nil
	}
	name := resourcename.Listener(loopback, uint32(number))
	return []planned{{name, func() (*listenerv3.Listener, error) {
		return boundHTTP(r, name, loopback, uint32(number), resourcename.HTTPProxyRouteConfig, r.Services())
	}}}
}

// planExplicit lists the Sidecar's egress listeners that name a port or a unix socket.
func planExplicit(r *input.Reader) []planned {
	var out []planned
	for _, e := range sidecarscope.ExplicitListeners(r) {
		bind := cmp.Or(e.Bind, wildcard)
		name := resourcename.Listener(bind, e.Port)
		switch {
		case e.OnSocket():
			name = bind
		case e.BindToPort:
			name = boundName(r, bind, e.Port)
		}
		out = append(out, planned{name, func() (*listenerv3.Listener, error) {
			l, err := explicit(r, e, name, bind)
			if err == nil && e.OnLoopback {
				alsoOnLoopback(r, l, e.Port)
			}
			return l, err
		}})
	}
	return out
}

func explicit(r *input.Reader, e sidecarscope.ExplicitListener, name, bind string) (*listenerv3.Listener, error) {
	if protocol.MayBeHTTP(e.Protocol) || e.Protocol == configv1.Protocol_PROTOCOL_HTTP_PROXY {
		out, err := boundHTTP(r, name, bind, e.Port, e.Route, r.EgressServices(e.Egress))
		if err == nil && !e.BindToPort {
			out.BindToPort = wrapperspb.Bool(false)
		}
		return out, err
	}
	out := newListener(r, name, bind, e.Port, corev3.TrafficDirection_OUTBOUND)
	if !e.BindToPort {
		out.BindToPort = wrapperspb.Bool(false)
	}
	m, ok := destination(r, e)
	if !ok {
		filters, err := tcpProxy(r, resourcename.BlackHoleCluster, resourcename.BlackHoleCluster)
		out.FilterChains = []*listenerv3.FilterChain{{Filters: filters}}
		return out, err
	}
	s := &addressChains{EndpointAddress: serviceaddress.EndpointAddress{Address: bind, Port: e.Port, TCP: &m}}
	if err := addTCPChains(r, out, s); err != nil {
		return nil, err
	}
	inspectTLS(out)
	return out, nil
}

// destination is the service port of a TCP egress listener: that of the first service with the port, or else the only
// port of a service.
func destination(r *input.Reader, e sidecarscope.ExplicitListener) (servicePort, bool) {
	services := r.EgressServices(e.Egress)
	for _, svc := range services {
		if port := discovery.Port(svc, e.Port); port != nil {
			return servicePort{Service: svc, Port: port}, true
		}
	}
	for _, svc := range services {
		if len(svc.GetPorts()) == 1 {
			return servicePort{Service: svc, Port: svc.GetPorts()[0]}, true
		}
	}
	return servicePort{}, false
}

// boundHTTP builds a listener for HTTP alone.
func boundHTTP(
	r *input.Reader, name, address string, port uint32, routeName string, services []*configv1.Service,
) (*listenerv3.Listener, error) {
	filters, err := outboundHTTP(r, name, routeName, services)
	if err != nil {
		return nil, err
	}
	out := newListener(r, name, address, port, corev3.TrafficDirection_OUTBOUND)
	out.FilterChains = []*listenerv3.FilterChain{{Filters: filters}}
	return out, nil
}
