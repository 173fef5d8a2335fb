package listener

import (
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	udpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3"
	networkinputsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	runtimefractionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/input_matchers/runtime_fraction/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// udpIdleTimeout ends the session of a client's port. It is Envoy's default, written out because a session keeps its
// destination.
const udpIdleTimeout = time.Minute

// gatewayUDP builds the listener of a port of UDP; nil if no listener of the Gateway API there has a route. It drops
// everything where policies apply to datagrams; the error, a *plan.Incomplete, names them.
func gatewayUDP(r *input.Reader, port gateway.Port, name string) (*listenerv3.Listener, error) {
	rule := leastRule(port.Listeners[0].Routes(r, gateway.AnyHost))
	if rule == nil {
		return nil, nil
	}
	destinations := rule.GetDestinations()
	var closed error
	if err := policy.Datagrams(r, port.Number); err != nil {
		destinations, closed = nil, &plan.Incomplete{Err: err}
	}
	proxy, err := typedconfig.Checked(&udpproxyv3.UdpProxyConfig{
		StatPrefix:     "outbound_" + name,
		IdleTimeout:    durationpb.New(udpIdleTimeout),
		RouteSpecifier: &udpproxyv3.UdpProxyConfig_Matcher{Matcher: udpDestinations(r, destinations)},
	})
	if err != nil {
		return nil, err
	}
	out := newListener(r, name, port.Bind, port.Number, corev3.TrafficDirection_OUTBOUND)
	out.Address.GetSocketAddress().Protocol = corev3.SocketAddress_UDP
	for _, additional := range out.GetAdditionalAddresses() {
		additional.GetAddress().GetSocketAddress().Protocol = corev3.SocketAddress_UDP
	}
	out.UdpListenerConfig = &listenerv3.UdpListenerConfig{}
	out.ListenerFilters = []*listenerv3.ListenerFilter{{
		Name: "envoy.filters.udp_listener.udp_proxy", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: proxy},
	}}
	return out, closed
}

// udpDestinations chooses the cluster of a session by the weights. The UDP proxy has no weighted clusters, so each but
// the last destination takes its share of the client's ports, by a hash. A share whose destination cannot be resolved
// is dropped, because there is no such cluster.
func udpDestinations(r *input.Reader, to []*configv1.AttachedDestination) *xdsmatcherv3.Matcher {
	if len(to) == 0 {
		to = []*configv1.AttachedDestination{{Hostname: contract.UnresolvedBackend, Weight: 1}}
	}
	var rest uint64
	for _, d := range to {
		rest += uint64(d.GetWeight())
	}
	choices := &xdsmatcherv3.Matcher_MatcherList{}
	for i, d := range to[:len(to)-1] {
		choices.Matchers = append(choices.Matchers, &xdsmatcherv3.Matcher_MatcherList_FieldMatcher{
			Predicate: shareOfPorts(uint64(d.GetWeight()), rest, uint64(i)), OnMatch: toCluster(attachedCluster(r, d)),
		})
		rest -= uint64(d.GetWeight())
	}
	out := &xdsmatcherv3.Matcher{OnNoMatch: toCluster(attachedCluster(r, to[len(to)-1]))}
	if len(choices.GetMatchers()) > 0 {
		out.MatcherType = &xdsmatcherv3.Matcher_MatcherList_{MatcherList: choices}
	}
	return out
}

// shareOfPorts matches a share of the ports of clients. Each seed has a hash of its own.
func shareOfPorts(part, of, seed uint64) *xdsmatcherv3.Matcher_MatcherList_Predicate {
	const million = 1_000_000
	return &xdsmatcherv3.Matcher_MatcherList_Predicate{
		MatchType: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{
			SinglePredicate: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate{
				Input: extension("envoy.matching.inputs.source_port", &networkinputsv3.SourcePortInput{}),
				Matcher: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_CustomMatch{
					CustomMatch: extension("envoy.matching.matchers.runtime_fraction", &runtimefractionv3.RuntimeFraction{
						RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{
							Numerator: uint32(part * million / of), Denominator: typev3.FractionalPercent_MILLION, //nolint:gosec // at most a million
						}},
						Seed: seed,
					}),
				},
			},
		},
	}
}

func toCluster(name string) *xdsmatcherv3.Matcher_OnMatch {
	return &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Action{
		Action: extension("route", &udpproxyv3.Route{Cluster: name}),
	}}
}

func extension(name string, config proto.Message) *xdscorev3.TypedExtensionConfig {
	return &xdscorev3.TypedExtensionConfig{Name: name, TypedConfig: typedconfig.Any(config)}
}
