package listener

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/tlsctx"
)

// listenerChains builds the filter chains of a listener of the Gateway API for HTTPS, TLS or TCP.
func listenerChains(r *input.Reader, port gateway.Port, l gateway.Listener, name string) ([]filterChain, error) {
	switch l.Spec.GetProtocol() {
	case configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS:
		socket, err := listenerSocket(r, l)
		if err != nil {
			return nil, err
		}
		filters, err := gatewayManager(r, name, port.ListenerRoute(l))
		if err != nil {
			return nil, err
		}
		return []filterChain{{match: serverNameMatch(l.Host()), filters: filters, socket: socket}}, nil
	case configv1.ListenerProtocol_LISTENER_PROTOCOL_TLS:
		return tlsListenerChains(r, port, l)
	default:
		rule := leastRule(l.Routes(r, gateway.AnyHost))
		if rule == nil {
			return nil, nil
		}
		filters, err := toAttached(r, rule.GetDestinations())
		return []filterChain{{filters: filters}}, err
	}
}

// tlsListenerChains builds a filter chain for each domain of a TLS listener. Connections for the listener's hostname
// that no route is for are closed: no other listener takes them.
func tlsListenerChains(r *input.Reader, port gateway.Port, l gateway.Listener) ([]filterChain, error) {
	var socket *corev3.TransportSocket
	var err error
	if l.Terminates() {
		if socket, err = listenerSocket(r, l); err != nil {
			return nil, err
		}
	}
	var out []filterChain
	for _, domain := range port.Domains(r, l) {
		chain := filterChain{match: serverNameMatch(domain), socket: socket}
		rule := leastRule(l.Routes(r, domain))
		if rule == nil {
			rule = &configv1.AttachedRule{}
		}
		if chain.filters, err = toAttached(r, rule.GetDestinations()); err != nil {
			return nil, err
		}
		out = append(out, chain)
	}
	return out, nil
}

// listenerSocket builds the TLS context of a listener that terminates TLS.
func listenerSocket(r *input.Reader, l gateway.Listener) (*corev3.TransportSocket, error) {
	return tlsctx.Terminate(l.TLS, tlsctx.Terminator{
		Trust: tlsctx.NewTrust(r.Class().TrustDomain, r.Mesh().GetTrustDomainAliases()), HTTP: l.TerminatesHTTP(), Credentials: true,
		Mesh: r.Mesh(), ClientAuthorities: l.Spec.GetClientAuthorities(), InsecureFallback: l.Spec.GetInsecureFallback(),
	})
}

// serverNameMatch matches TLS handshakes with an SNI of the domain.
func serverNameMatch(domain string) *listenerv3.FilterChainMatch {
	out := &listenerv3.FilterChainMatch{TransportProtocol: tlsTransport}
	if domain != gateway.AnyHost {
		out.ServerNames = []string{domain}
	}
	return out
}

// leastRule returns the rule that takes the connections of a listener: the first of the route with the least rank; nil
// if there is none.
func leastRule(routes []*mesh.HostRoute) *configv1.AttachedRule {
	routes = slices.DeleteFunc(slices.Clone(routes), func(route *mesh.HostRoute) bool { return len(route.Spec.GetRules()) == 0 })
	if len(routes) == 0 {
		return nil
	}
	return slices.MinFunc(routes, func(a, b *mesh.HostRoute) int {
		return bytes.Compare(slices.Concat(a.Rank, a.Spec.GetRank()), slices.Concat(b.Rank, b.Spec.GetRank()))
	}).Spec.GetRules()[0]
}

// toAttached forwards connections to the destinations of a route of the Gateway API by their weights. The share of one
// that cannot be resolved is closed.
func toAttached(r *input.Reader, to []*configv1.AttachedDestination) ([]*listenerv3.Filter, error) {
	proxy := &tcpproxyv3.TcpProxy{StatPrefix: resourcename.UnresolvedCluster}
	weighted := &tcpproxyv3.TcpProxy_WeightedCluster{}
	for _, d := range to {
		weighted.Clusters = append(weighted.Clusters,
			&tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight{Name: attachedCluster(r, d), Weight: d.GetWeight()})
	}
	if len(weighted.GetClusters()) > 0 {
		proxy.StatPrefix = weighted.GetClusters()[0].GetName()
		first := resourcename.Cluster{Direction: resourcename.DirectionOutbound, Port: to[0].GetPort(), Hostname: to[0].GetHostname()}
		applyTrafficPolicy(proxy, trafficPolicyOf(r, first))
	}
	if len(weighted.GetClusters()) > 1 {
		proxy.ClusterSpecifier = &tcpproxyv3.TcpProxy_WeightedClusters{WeightedClusters: weighted}
	} else {
		proxy.ClusterSpecifier = &tcpproxyv3.TcpProxy_Cluster{Cluster: proxy.GetStatPrefix()}
	}
	return tcpChain{proxy: proxy, outbound: true, guarded: r.Class().Type == class.Router}.filters(r)
}

// serviceTCPRoutes lists the TCPRoutes that are attached to a service port.
func serviceTCPRoutes(r *input.Reader, m servicePort) []*mesh.HostRoute {
	return lists.Map(r.ServiceRoutes(m.Service.GetHostname(), m.Port.GetNumber(), mesh.KindTCPRoute),
		func(route *mesh.AttachedRoute) *mesh.HostRoute { return &mesh.HostRoute{AttachedRoute: route} })
}

// serviceTLSRoutes lists, by server name, the TLSRoutes that are attached to a service port. One of all ports is not
// for those that are declared not to speak TLS: their servers may send first, and TLS is detected by what clients send.
func serviceTLSRoutes(r *input.Reader, m servicePort) map[string][]*mesh.HostRoute {
	byName := map[string][]*mesh.HostRoute{}
	may := contract.IsTLS(m.Port.GetProtocol()) || protocol.IsSniffed(m.Port.GetProtocol())
	for _, route := range r.ServiceRoutes(m.Service.GetHostname(), m.Port.GetNumber(), mesh.KindTLSRoute) {
		i := slices.IndexFunc(route.Spec.GetServices(), func(s *configv1.ServiceAttachment) bool {
			return s.GetHostname() == m.Service.GetHostname() && (s.GetPort() == m.Port.GetNumber() || s.GetPort() == 0 && may)
		})
		if i < 0 {
			continue
		}
		names := route.Spec.GetServices()[i].GetServerNames() // which all attachments have
		if len(names) == 0 {
			names = []string{gateway.AnyHost}
		}
		for _, name := range names {
			byName[name] = append(byName[name], &mesh.HostRoute{AttachedRoute: route})
		}
	}
	return byName
}

// serviceTLSChains builds the filter chains of the TLSRoutes that are attached to a service port, one for each server
// name; a route without server names takes those that no other has. TLS that no route takes is closed. With bySNI,
// where other services share the listener, only the service's own name and those of routes are the service's.
func serviceTLSChains(r *input.Reader, m servicePort, bySNI bool) ([]filterChain, error) {
	byName := serviceTLSRoutes(r, m)
	if len(byName) > 0 && byName[gateway.AnyHost] == nil && !bySNI {
		byName[gateway.AnyHost] = []*mesh.HostRoute{}
	}
	var out []filterChain
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		filters, err := toAttached(r, leastRule(byName[name]).GetDestinations())
		if err != nil {
			return nil, err
		}
		if name == gateway.AnyHost && bySNI {
			name = strings.ToLower(m.Service.GetHostname())
		}
		out = append(out, filterChain{match: serverNameMatch(name), filters: filters})
	}
	return out, nil
}

// attachedCluster names the cluster of a destination.
func attachedCluster(r *input.Reader, d *configv1.AttachedDestination) string {
	if d.GetHostname() == contract.UnresolvedBackend {
		return resourcename.UnresolvedCluster
	}
	hostname := d.GetHostname()
	if svc := r.FollowExternalName(hostname); svc != nil {
		hostname = svc.GetHostname()
	}
	return resourcename.OutboundCluster(d.GetPort(), "", hostname)
}
