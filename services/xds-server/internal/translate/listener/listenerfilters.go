package listener

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	originalsrcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_src/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// plainHTTP are the application protocols that the HTTP inspector detects.
var plainHTTP = []string{"http/1.0", "http/1.1", "h2c"}

func listenerFilter(name string, m proto.Message, disabled *listenerv3.ListenerFilterChainMatchPredicate) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{
		Name: name, FilterDisabled: disabled,
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: typedconfig.Any(m)},
	}
}

func originalDestination() *listenerv3.ListenerFilter {
	return listenerFilter("envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{}, nil)
}

// originalSource makes connections to the application come from the client's address (TPROXY).
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
