package listener

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	originalsrcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_src/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/names"
	"fairlead.dev/services/xds-server/internal/translate/pack"
	"fairlead.dev/services/xds-server/internal/translate/scope"
)

const (
	wildcard = "0.0.0.0"
	loopback = "127.0.0.1"

	outboundPort = 15001
	inboundPort  = 15006

	tlsTransport = "tls"
	rawTransport = "raw_buffer"

	// interceptionMark is what a TPROXY sidecar's own sockets carry, so that the redirection rules know them.
	interceptionMark = 1337
)

// plainHTTP are the HTTP inspector's findings.
var plainHTTP = []string{"http/1.0", "http/1.1", "h2c"}

// socketAddress is an address to listen on: an IP address and port, or a unix socket in the form of Istio's API.
func socketAddress(address string, port uint32) *corev3.Address {
	if path, ok := strings.CutPrefix(address, scope.UnixSocket); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// base is what all listeners have in common. A connection whose first bytes do not come in time goes on as opaque TCP; by default there is
// no such time.
func base(r *input.Reader, name, address string, port uint32, direction corev3.TrafficDirection) *listenerv3.Listener {
	timeout := r.Mesh().GetProtocolDetectionTimeout()
	if timeout == nil {
		timeout = durationpb.New(0)
	}
	address, more := inFamilies(r, address)
	var additional []*listenerv3.AdditionalAddress
	for _, a := range more {
		additional = append(additional, &listenerv3.AdditionalAddress{Address: socketAddress(a, port)})
	}
	return &listenerv3.Listener{
		Name:                             name,
		Address:                          socketAddress(address, port),
		AdditionalAddresses:              additional,
		TrafficDirection:                 direction,
		ListenerFiltersTimeout:           timeout,
		ContinueOnListenerFiltersTimeout: true,
	}
}

// alsoOnLoopback binds a listener to the host's own address besides.
func alsoOnLoopback(r *input.Reader, l *listenerv3.Listener, port uint32) {
	l.AdditionalAddresses = append(l.AdditionalAddresses, &listenerv3.AdditionalAddress{Address: socketAddress(r.Class().Families.Loopback(), port)})
}

// inFamilies writes an address that stands for all, or for the proxy's own host, as the proxy's families have it.
func inFamilies(r *input.Reader, address string) (first string, more []string) {
	switch address {
	case wildcard:
		return r.Class().Families.Of(wildcard, "::")
	case loopback:
		return r.Class().Families.Of(loopback, "::1")
	default:
		return address, nil
	}
}

func listenerFilter(name string, m proto.Message, disabled *listenerv3.ListenerFilterChainMatchPredicate) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{
		Name: name, FilterDisabled: disabled,
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: pack.Any(m)},
	}
}

func originalDestination() *listenerv3.ListenerFilter {
	return listenerFilter("envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{}, nil)
}

// originalSource makes the connection to the application come from the client's address.
func originalSource() *listenerv3.ListenerFilter {
	return listenerFilter("envoy.filters.listener.original_src", &originalsrcv3.OriginalSrc{Mark: interceptionMark}, nil)
}

func tlsInspector(disabled *listenerv3.ListenerFilterChainMatchPredicate) *listenerv3.ListenerFilter {
	return listenerFilter("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{}, disabled)
}

func httpInspector(disabled *listenerv3.ListenerFilterChainMatchPredicate) *listenerv3.ListenerFilter {
	return listenerFilter("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{}, disabled)
}

// onPorts matches connections to one of the ports; nil if there are none.
func onPorts(ports []uint32) *listenerv3.ListenerFilterChainMatchPredicate {
	var rules []*listenerv3.ListenerFilterChainMatchPredicate
	for _, port := range slices.Compact(slices.Sorted(slices.Values(ports))) {
		rules = append(rules, &listenerv3.ListenerFilterChainMatchPredicate{
			Rule: &listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange{
				DestinationPortRange: &typev3.Int32Range{Start: int32(port), End: int32(port) + 1}, //nolint:gosec // a port
			},
		})
	}
	switch len(rules) {
	case 0:
		return nil
	case 1:
		return rules[0]
	default:
		return &listenerv3.ListenerFilterChainMatchPredicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_OrMatch{
			OrMatch: &listenerv3.ListenerFilterChainMatchPredicate_MatchSet{Rules: rules},
		}}
	}
}

// tcpProxy forwards bytes to one cluster.
func tcpProxy(r *input.Reader, statPrefix, cluster string) ([]*listenerv3.Filter, error) {
	return tcpChain{proxy: &tcpproxyv3.TcpProxy{
		StatPrefix:       statPrefix,
		ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster},
	}}.filters(r)
}

// httpFilters is a chain of one connection manager.
func httpFilters(o hcm.Options) ([]*listenerv3.Filter, error) {
	manager, err := hcm.Build(o)
	if err != nil {
		return nil, err
	}
	return []*listenerv3.Filter{manager}, nil
}

// passthroughChain takes connections to destinations that nobody knows.
func passthroughChain(r *input.Reader, name string) (*listenerv3.FilterChain, error) {
	cluster := scope.Unknown(r)
	filters, err := tcpProxy(r, cluster, cluster)
	if err != nil {
		return nil, err
	}
	return &listenerv3.FilterChain{Name: name, Filters: filters}, nil
}

// blackhole refuses connections to the capturing port itself: forwarding them would lead back to it.
func blackhole(r *input.Reader, name string, port uint32) (*listenerv3.FilterChain, error) {
	filters, err := tcpProxy(r, names.BlackHoleCluster, names.BlackHoleCluster)
	if err != nil {
		return nil, err
	}
	return &listenerv3.FilterChain{
		Name:             name,
		FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(port)},
		Filters:          filters,
	}, nil
}

func portOr(configured int32, fallback uint32) uint32 {
	if configured > 0 {
		return uint32(configured)
	}
	return fallback
}

// virtualOutbound takes all captured outbound connections and hands each to the listener of its original destination, if there is one.
func virtualOutbound(r *input.Reader) (*listenerv3.Listener, error) {
	port := portOr(r.Mesh().GetProxyListenPort(), outboundPort)
	out := base(r, names.VirtualOutbound, wildcard, port, corev3.TrafficDirection_OUTBOUND)
	out.UseOriginalDst = wrapperspb.Bool(true)
	out.Transparent = transparent(r)
	hole, err := blackhole(r, "virtualOutbound-blackhole", port)
	if err != nil {
		return nil, err
	}
	catchAll, err := passthroughChain(r, "virtualOutbound-catchall-tcp")
	if r.Class().OnDemand {
		catchAll.Filters, err = onDemandTCP(r, names.OnDemandTCPFormat)
	}
	if err != nil {
		return nil, err
	}
	out.FilterChains = []*listenerv3.FilterChain{hole, catchAll}
	return out, nil
}

func transparent(r *input.Reader) *wrapperspb.BoolValue {
	if r.Class().Interception == class.TProxy {
		return wrapperspb.Bool(true)
	}
	return nil
}
