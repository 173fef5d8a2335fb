package listener

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/dynamicforwardproxy"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/route"
	"fairlead.dev/services/xds-server/internal/translate/trafficpolicy"
)

// matchContext has the values of TCP and TLS matches that do not depend on the connection: the port and the gateway.
type matchContext struct {
	port    uint32
	gateway string
	// statPrefix replaces the destination's name in statistics; "" for none.
	statPrefix string
}

// l4MatchAttributes are the fields that Istio's L4MatchAttributes and TLSMatchAttributes have in common.
type l4MatchAttributes interface {
	GetPort() uint32
	GetGateways() []string
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
	GetDestinationSubnets() []string
}

// matches reports whether connections on the port, by the gateway, from the proxy can match: it compares all fields but
// the CIDR ranges and SNI hosts, which Envoy compares.
func (c matchContext) matches(r *input.Reader, vs *mesh.VirtualService, m l4MatchAttributes) bool {
	if m.GetPort() != 0 && m.GetPort() != c.port {
		return false
	}
	if len(m.GetGateways()) > 0 && !slices.ContainsFunc(m.GetGateways(), func(name string) bool {
		return contract.GatewayName(name, vs.Key.Namespace) == c.gateway
	}) {
		return false
	}
	// sourceNamespace and sourceLabels limit sidecars only: all traffic of a gateway comes from the gateway.
	return c.gateway != contract.MeshGateway || (m.GetSourceNamespace() == "" || m.GetSourceNamespace() == r.Namespace()) &&
		(len(m.GetSourceLabels()) == 0 || mesh.Matches(m.GetSourceLabels(), r.Labels()))
}

// filterChain is a filter chain of TCP or TLS; match is nil if it accepts every connection.
type filterChain struct {
	match   *listenerv3.FilterChainMatch
	filters []*listenerv3.Filter
	// socket terminates TLS; nil if the chain does not.
	socket *corev3.TransportSocket
	// uses, if not nil, is called when the chain becomes part of a listener. It records that the listener uses a
	// VirtualService.
	uses func()
}

func (c filterChain) used() {
	if c.uses != nil {
		c.uses()
	}
}

func (c filterChain) chain() *listenerv3.FilterChain {
	return &listenerv3.FilterChain{FilterChainMatch: c.match, Filters: c.filters, TransportSocket: c.socket}
}

// tcpRoutes builds the filter chains of a VirtualService's TCP routes that apply, in order, up to the first without a
// match.
func tcpRoutes(r *input.Reader, vs *mesh.VirtualService, c matchContext) ([]filterChain, error) {
	var out []filterChain
	uses := func() { r.Uses(vs) }
	for i, in := range vs.Spec.GetTcp() {
		filters, err := toDestinations(r, in.GetRoute(), c)
		if err != nil {
			return nil, fmt.Errorf("VirtualService %s/%s: tcp[%d].%w", vs.Key.Namespace, vs.Key.Name, i, err)
		}
		if len(in.GetMatch()) == 0 {
			return append(out, filterChain{filters: filters, uses: uses}), nil
		}
		for j, m := range in.GetMatch() {
			if !c.matches(r, vs, m) {
				continue
			}
			match := &listenerv3.FilterChainMatch{}
			match.PrefixRanges, err = ranges(m.GetDestinationSubnets())
			if err == nil && m.GetSourceSubnet() != "" {
				match.SourcePrefixRanges, err = ranges([]string{m.GetSourceSubnet()})
			}
			if err != nil {
				return nil, fmt.Errorf("VirtualService %s/%s: tcp[%d].match[%d]: %w", vs.Key.Namespace, vs.Key.Name, i, j, err)
			}
			if len(match.GetPrefixRanges()) == 0 && len(match.GetSourcePrefixRanges()) == 0 {
				return append(out, filterChain{filters: filters, uses: uses}), nil
			}
			out = append(out, filterChain{match: match, filters: filters, uses: uses})
		}
	}
	return out, nil
}

// tlsRoutes builds the filter chains of a VirtualService's TLS routes that apply. admit returns the part of an SNI host
// that the listener serves.
func tlsRoutes(r *input.Reader, vs *mesh.VirtualService, c matchContext, admit func(host string) []string) ([]filterChain, error) {
	var out []filterChain
	for i, in := range vs.Spec.GetTls() {
		filters, err := toDestinations(r, in.GetRoute(), c)
		if err != nil {
			return nil, fmt.Errorf("VirtualService %s/%s: tls[%d].%w", vs.Key.Namespace, vs.Key.Name, i, err)
		}
		for j, m := range in.GetMatch() {
			if !c.matches(r, vs, m) {
				continue
			}
			match := &listenerv3.FilterChainMatch{TransportProtocol: tlsTransport}
			if match.PrefixRanges, err = ranges(m.GetDestinationSubnets()); err != nil {
				return nil, fmt.Errorf("VirtualService %s/%s: tls[%d].match[%d]: %w", vs.Key.Namespace, vs.Key.Name, i, j, err)
			}
			anything := false
			for _, host := range m.GetSniHosts() {
				for _, common := range admit(host) {
					anything = anything || common == "*"
					match.ServerNames = append(match.ServerNames, strings.ToLower(common))
				}
			}
			if anything {
				match.ServerNames = nil
			} else if len(match.GetServerNames()) == 0 {
				continue
			}
			out = append(out, filterChain{match: match, filters: filters, uses: func() { r.Uses(vs) }})
		}
	}
	return out, nil
}

// tlsRoutesUnderWildcard builds the filter chains of TLS routes for hosts that the wildcard host of a service covers.
// The service keeps its other hosts.
func tlsRoutesUnderWildcard(r *input.Reader, m servicePort, c matchContext) ([]filterChain, error) {
	hostname := m.Service.GetHostname()
	if !strings.HasPrefix(hostname, "*") || !contract.IsTLS(m.Port.GetProtocol()) {
		return nil, nil
	}
	var out []filterChain
	for _, vs := range r.OpaqueRoutes() {
		if !slices.ContainsFunc(vs.Spec.GetHosts(), func(host string) bool { return host != hostname && gateway.Covers(hostname, host) }) {
			continue
		}
		found, err := tlsRoutes(r, vs, c, func(host string) []string {
			if !gateway.Covers(hostname, host) {
				return nil
			}
			return []string{host}
		})
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// takesAll reports whether the last of the chains accepts every connection.
func takesAll(chains []filterChain) bool {
	return len(chains) > 0 && chains[len(chains)-1].match == nil
}

func ranges(subnets []string) ([]*corev3.CidrRange, error) {
	var out []*corev3.CidrRange
	for _, subnet := range subnets {
		prefix, err := netip.ParsePrefix(subnet)
		if err != nil {
			ip, ipErr := netip.ParseAddr(subnet)
			if ipErr != nil {
				return nil, fmt.Errorf("subnet %q: %w", subnet, err)
			}
			prefix = netip.PrefixFrom(ip, ip.BitLen())
		}
		out = append(out, cidr(prefix.Masked()))
	}
	return out, nil
}

func cidr(p netip.Prefix) *corev3.CidrRange {
	return &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))} //nolint:gosec // 0-128
}

// toDestinations forwards connections to one cluster, or to weighted clusters.
func toDestinations(r *input.Reader, to []*networking.RouteDestination, c matchContext) ([]*listenerv3.Filter, error) {
	if len(to) == 0 {
		return nil, fmt.Errorf("route: a destination is required")
	}
	first := destinationCluster(r, to[0].GetDestination(), c.port)
	proxy := &tcpproxyv3.TcpProxy{StatPrefix: c.statPrefix}
	if proxy.StatPrefix == "" {
		proxy.StatPrefix = first.String()
	}
	if len(to) == 1 {
		proxy.ClusterSpecifier = &tcpproxyv3.TcpProxy_Cluster{Cluster: first.String()}
	} else {
		weighted := &tcpproxyv3.TcpProxy_WeightedCluster{}
		for _, d := range to {
			if d.GetWeight() > 0 {
				weighted.Clusters = append(weighted.Clusters, &tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight{
					Name: destinationCluster(r, d.GetDestination(), c.port).String(), Weight: uint32(d.GetWeight()),
				})
			}
		}
		if len(weighted.GetClusters()) == 0 {
			return nil, fmt.Errorf("route: no destination has a weight above 0")
		}
		proxy.ClusterSpecifier = &tcpproxyv3.TcpProxy_WeightedClusters{WeightedClusters: weighted}
	}
	applied := trafficPolicyOf(r, first)
	applyTrafficPolicy(proxy, applied)
	for i, d := range to[1:] {
		if !proto.Equal(trafficPolicyOf(r, destinationCluster(r, d.GetDestination(), c.port)).GetTunnel(), applied.GetTunnel()) {
			return nil, fmt.Errorf("route[%d].destination: has another trafficPolicy.tunnel than route[0].destination, but a connection has one "+
				"for all", i+1)
		}
	}
	return tcpChain{proxy: proxy, outbound: true, guarded: r.Class().Type == class.Router}.filters(r)
}

func destinationCluster(r *input.Reader, to *networking.Destination, port uint32) resourcename.Cluster {
	if number := to.GetPort().GetNumber(); number != 0 {
		port = number
	} else if ports := r.FollowExternalName(to.GetHost()).GetPorts(); len(ports) == 1 {
		port = ports[0].GetNumber()
	}
	return resourcename.Cluster{Direction: resourcename.DirectionOutbound, Port: port, Subset: to.GetSubset(),
		Hostname: route.DestinationHost(r, to)}
}

// trafficPolicyOf returns the traffic policy of a cluster.
func trafficPolicyOf(r *input.Reader, c resourcename.Cluster) *networking.TrafficPolicy {
	var found *networking.TrafficPolicy
	if rule := r.DestinationRule(c.Hostname); rule != nil {
		found = trafficpolicy.For(rule.Spec, trafficpolicy.Subset(rule.Spec, c.Subset), c.Port)
	}
	return trafficpolicy.WithAffinity(trafficpolicy.WithDefaults(found, r.Mesh()), r.Service(c.Hostname))
}

// applyTrafficPolicy applies the traffic policies that Envoy configures in the TCP proxy. With weighted clusters the
// policy of the first applies, as in Istio.
func applyTrafficPolicy(proxy *tcpproxyv3.TcpProxy, applied *networking.TrafficPolicy) {
	proxy.IdleTimeout = applied.GetConnectionPool().GetTcp().GetIdleTimeout()
	proxy.MaxDownstreamConnectionDuration = applied.GetConnectionPool().GetTcp().GetMaxConnectionDuration()
	if trafficpolicy.ConsistentHash(applied).GetUseSourceIp() {
		proxy.HashPolicy = []*typev3.HashPolicy{{PolicySpecifier: &typev3.HashPolicy_SourceIp_{SourceIp: &typev3.HashPolicy_SourceIp{}}}}
	}
	if tunnel := applied.GetTunnel(); tunnel != nil {
		proxy.TunnelingConfig = &tcpproxyv3.TcpProxy_TunnelingConfig{
			Hostname: net.JoinHostPort(tunnel.GetTargetHost(), strconv.FormatUint(uint64(tunnel.GetTargetPort()), 10)),
			UsePost:  tunnel.GetProtocol() == "POST",
		}
	}
}

// servicePortTCP forwards connections to a service port that has no TCP or TLS route.
func servicePortTCP(r *input.Reader, m servicePort) ([]*listenerv3.Filter, error) {
	c := resourcename.Cluster{Direction: resourcename.DirectionOutbound, Port: m.Port.GetNumber(), Hostname: m.Service.GetHostname()}
	proxy := &tcpproxyv3.TcpProxy{StatPrefix: c.String(), ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: c.String()}}
	applyTrafficPolicy(proxy, trafficPolicyOf(r, c))
	chain := tcpChain{proxy: proxy, outbound: true}
	if dynamicforwardproxy.Is(m.Service) && !r.Class().OnDemand {
		chain.resolveSNI = m.Port.GetNumber()
	}
	return chain.filters(r)
}

// servicePortChains builds the filter chains of a service port for everything but HTTP. The last one accepts every
// connection, except with bySNI, where the services of a listener are chosen by SNI, or if TLS routes of a
// VirtualService leave hosts out.
func servicePortChains(r *input.Reader, m servicePort, bySNI bool) ([]filterChain, error) {
	c := matchContext{port: m.Port.GetNumber(), gateway: contract.MeshGateway}
	out, err := tlsRoutesUnderWildcard(r, m, c)
	if err != nil {
		return nil, err
	}
	underWildcard := len(out)
	for _, vs := range r.VirtualServicesOf(contract.MeshGateway, m.Service.GetHostname()) {
		var found []filterChain
		var err error
		if contract.IsTLS(m.Port.GetProtocol()) {
			found, err = tlsRoutes(r, vs, c, func(host string) []string { return []string{host} })
		} else {
			found, err = tcpRoutes(r, vs, c)
		}
		if err != nil {
			return nil, err
		}
		if out = append(out, found...); takesAll(out) {
			return out, nil
		}
	}
	if len(out) > underWildcard && contract.IsTLS(m.Port.GetProtocol()) {
		return out, nil
	}
	if len(out) == underWildcard {
		found, err := serviceTLSChains(r, m, bySNI)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
		underWildcard = len(out)
	}
	if attached := leastRule(serviceTCPRoutes(r, m)); attached != nil && len(out) == underWildcard && !bySNI {
		filters, err := toAttached(r, attached.GetDestinations())
		return append(out, filterChain{filters: filters}), err
	}
	// Connections that match no TCP route go to the service itself.
	filters, err := servicePortTCP(r, m)
	if err != nil {
		return nil, err
	}
	if bySNI {
		return append(out, filterChain{match: &listenerv3.FilterChainMatch{
			TransportProtocol: tlsTransport, ServerNames: []string{strings.ToLower(m.Service.GetHostname())},
		}, filters: filters}), nil
	}
	return append(out, filterChain{filters: filters}), nil
}
