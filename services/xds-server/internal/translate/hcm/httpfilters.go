package hcm

import (
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	setfilterstatecommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	grpcstatsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_stats/v3"
	grpcwebv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_web/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/dynamicforwardproxy"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// Names of the filters that routes configure.
const (
	CORSFilter  = "envoy.filters.http.cors"
	FaultFilter = "envoy.filters.http.fault"
)

// filterList lists every HTTP filter but those of policies in the order in which a request passes them. A connection
// manager has the filters whose function returns a configuration for its options.
var filterList = []struct {
	name   string
	config func(Options) proto.Message
}{
	// First, because a filter before it would read the request's route, and run again when the request is restarted
	// with its virtual host.
	{"envoy.filters.http.on_demand", onDemand},
	{"envoy.filters.http.grpc_web", grpcWeb},
	{"envoy.filters.http.grpc_stats", grpcStats},
	{FaultFilter, func(Options) proto.Message { return &faultv3.HTTPFault{} }},
	{CORSFilter, func(Options) proto.Message { return &corsv3.Cors{} }},
	{"envoy.filters.http.set_filter_state", offerALPN},
	{dynamicforwardproxy.HTTPFilter, dynamicForwardProxy},
	{"envoy.filters.http.router", router},
}

func httpFilters(o Options) []*managerv3.HttpFilter {
	// Policies come before everything that acts on a request.
	out := slices.Clone(o.Policies)
	for _, f := range filterList {
		if config := f.config(o); config != nil {
			out = append(out, &managerv3.HttpFilter{
				Name: f.name, ConfigType: &managerv3.HttpFilter_TypedConfig{TypedConfig: typedconfig.Any(config)},
			})
		}
	}
	return out
}

// clusterTimeout limits how long a request waits for a cluster that xds-server does not send.
const clusterTimeout = 5 * time.Second

// onDemand requests clusters over ADS. Virtual hosts come from the config source of the route configuration.
func onDemand(o Options) proto.Message {
	if !o.OnDemand {
		return nil
	}
	return &ondemandv3.OnDemand{Odcds: &ondemandv3.OnDemandCds{
		Source:  coreconfig.ADS(),
		Timeout: durationpb.New(clusterTimeout),
	}}
}

func grpcWeb(o Options) proto.Message {
	if !o.GRPCWeb {
		return nil
	}
	return &grpcwebv3.GrpcWeb{}
}

func grpcStats(Options) proto.Message {
	return &grpcstatsv3.FilterConfig{
		EmitFilterState:        true,
		PerMethodStatSpecifier: &grpcstatsv3.FilterConfig_StatsForAllMethods{StatsForAllMethods: wrapperspb.Bool(false)},
	}
}

// offerALPN sets the ALPN values of each request's TLS handshake from the metadata of its cluster. The cluster of a
// port of undeclared protocol carries both HTTP and other connections, and the server tells them apart by ALPN.
func offerALPN(o Options) proto.Message {
	if o.Role == SidecarInbound {
		return nil
	}
	return &setfilterstatev3.Config{OnRequestHeaders: []*setfilterstatecommonv3.FilterStateValue{{
		Key: &setfilterstatecommonv3.FilterStateValue_ObjectKey{ObjectKey: "envoy.network.application_protocols"},
		Value: &setfilterstatecommonv3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{
					InlineString: "%CLUSTER_METADATA(" + ALPNMetadataNamespace + ":" + ALPNMetadataKey + ")%",
				},
			}},
			OmitEmptyValues: true,
		}},
		SkipIfEmpty: true,
	}}}
}

func dynamicForwardProxy(o Options) proto.Message {
	if o.Dynamic == nil {
		return nil
	}
	return o.Dynamic
}

func router(o Options) proto.Message {
	return &routerv3.Router{SuppressEnvoyHeaders: o.Headers.GetEnvoyDebugHeaders().GetDisabled().GetValue()}
}
