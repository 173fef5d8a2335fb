// Package hcm builds HTTP connection managers, the network filter that turns bytes into requests, with the filters that every Fairlead proxy
// has. Only filters of upstream Envoy are used.
package hcm

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	setfilterstatecommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	dfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
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
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/xds-server/internal/translate/dynamic"
	"fairlead.dev/services/xds-server/internal/translate/pack"
)

// Names of the filters that routes override.
const (
	CORSFilter  = "envoy.filters.http.cors"
	FaultFilter = "envoy.filters.http.fault"

	managerFilter  = "envoy.filters.network.http_connection_manager"
	onDemandFilter = "envoy.filters.http.on_demand"
	alpnFilter     = "envoy.filters.http.set_filter_state"
	grpcStats      = "envoy.filters.http.grpc_stats"
	grpcWeb        = "envoy.filters.http.grpc_web"
	routerFilter   = "envoy.filters.http.router"
	websocket      = "websocket"
	connect        = "CONNECT"
	meshServerName = "istio-envoy"

	// clusterTimeout is how long a request waits for its cluster while the control plane does not answer.
	clusterTimeout = 5 * time.Second
)

// A cluster may say in its metadata which ALPN values its connections offer when they carry HTTP; without, the cluster's TLS context decides.
const (
	ALPNMetadataNamespace = "fairlead.dev"
	ALPNMetadataKey       = "http_alpn"
)

// Role is where the connection manager stands.
type Role int

// Roles of connection managers.
const (
	SidecarInbound Role = iota + 1
	SidecarOutbound
	Gateway
)

// Options of one connection manager.
type Options struct {
	Role       Role
	StatPrefix string
	// RouteName asks for a route configuration over ADS; Routes is used where it is empty.
	RouteName string
	Routes    *routev3.RouteConfiguration
	// GRPCWeb translates gRPC-Web requests into gRPC.
	GRPCWeb bool
	// OnDemand asks for virtual hosts and clusters that the proxy does not have when a request needs them.
	OnDemand bool
	// Topology is what is in front of a gateway.
	Topology *meshv1alpha1.Topology
	// Dynamic has the hosts of requests looked up whose cluster leaves that to the proxy; nil where there is no such cluster.
	Dynamic *dfpv3.FilterConfig
	Mesh    *meshv1alpha1.MeshConfig
	// Headers says which headers the proxy adds.
	Headers *meshv1alpha1.ProxyConfig_ProxyHeaders
}

// Build returns the network filter.
func Build(o Options) (*listenerv3.Filter, error) {
	logs, err := AccessLog(o.Mesh)
	if err != nil {
		return nil, err
	}
	m := &managerv3.HttpConnectionManager{
		StatPrefix:        o.StatPrefix,
		HttpFilters:       filters(o),
		AccessLog:         logs,
		UseRemoteAddress:  wrapperspb.Bool(o.Role == Gateway),
		StreamIdleTimeout: streamIdle(o),
		Proxy_100Continue: true,
		UpgradeConfigs:    upgrades(o.Role),
		// HTTP/1.0 clients are served as HTTP/1.1 ones; without this Envoy answers 426.
		HttpProtocolOptions: &corev3.Http1ProtocolOptions{AcceptHttp_10: true},
		// Upgrades of requests that were HTTP/1.1 at the client.
		Http2ProtocolOptions: &corev3.Http2ProtocolOptions{AllowConnect: true},
	}
	normalise(m, o.Mesh.GetPathNormalization().GetNormalization())
	identity(m, o)
	if o.RouteName != "" {
		m.RouteSpecifier = &managerv3.HttpConnectionManager_Rds{Rds: &managerv3.Rds{
			RouteConfigName: o.RouteName,
			ConfigSource: &corev3.ConfigSource{
				ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
				InitialFetchTimeout:   durationpb.New(0),
				ResourceApiVersion:    corev3.ApiVersion_V3,
			},
		}}
	} else {
		m.RouteSpecifier = &managerv3.HttpConnectionManager_RouteConfig{RouteConfig: o.Routes}
	}
	packed, err := pack.Checked(m)
	if err != nil {
		return nil, err
	}
	return &listenerv3.Filter{Name: managerFilter, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed}}, nil
}

// upgrades lists what a connection may become after a request. A sidecar lets CONNECT through where a route takes it: its application may use
// a forward proxy, or be one.
func upgrades(role Role) []*managerv3.HttpConnectionManager_UpgradeConfig {
	out := []*managerv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: websocket}}
	if role != Gateway {
		out = append(out, &managerv3.HttpConnectionManager_UpgradeConfig{UpgradeType: connect})
	}
	return out
}

// identity sets what the proxy says of itself and of the client: the server header, and x-forwarded-client-cert. A sidecar passes the header
// on along the chain and adds its own client; a gateway accepts none from outside; what an application sends is dropped on the way out.
func identity(m *managerv3.HttpConnectionManager, o Options) {
	switch o.Role {
	case SidecarInbound:
		m.ForwardClientCertDetails = managerv3.HttpConnectionManager_APPEND_FORWARD
		m.SetCurrentClientCertDetails = clientCertDetails()
	case Gateway:
		m.ForwardClientCertDetails = managerv3.HttpConnectionManager_SANITIZE_SET
		m.SetCurrentClientCertDetails = clientCertDetails()
		m.XffNumTrustedHops = o.Topology.GetNumTrustedProxies()
		if details := o.Topology.GetForwardClientCertDetails(); details != meshv1alpha1.ForwardClientCertDetails_UNDEFINED {
			m.ForwardClientCertDetails = forwardDetails[details]
		}
	case SidecarOutbound:
		m.ForwardClientCertDetails = managerv3.HttpConnectionManager_SANITIZE
	}
	// Istio's outbound listeners keep Envoy's default, "envoy".
	if o.Role != SidecarOutbound {
		m.ServerName = meshServerName
	}
	proxyHeaders(m, o.Role, o.Headers)
}

var forwardDetails = map[meshv1alpha1.ForwardClientCertDetails]managerv3.HttpConnectionManager_ForwardClientCertDetails{
	meshv1alpha1.ForwardClientCertDetails_SANITIZE:            managerv3.HttpConnectionManager_SANITIZE,
	meshv1alpha1.ForwardClientCertDetails_FORWARD_ONLY:        managerv3.HttpConnectionManager_FORWARD_ONLY,
	meshv1alpha1.ForwardClientCertDetails_APPEND_FORWARD:      managerv3.HttpConnectionManager_APPEND_FORWARD,
	meshv1alpha1.ForwardClientCertDetails_SANITIZE_SET:        managerv3.HttpConnectionManager_SANITIZE_SET,
	meshv1alpha1.ForwardClientCertDetails_ALWAYS_FORWARD_ONLY: managerv3.HttpConnectionManager_ALWAYS_FORWARD_ONLY,
}

func clientCertDetails() *managerv3.HttpConnectionManager_SetCurrentClientCertDetails {
	return &managerv3.HttpConnectionManager_SetCurrentClientCertDetails{Subject: wrapperspb.Bool(true), Dns: true, Uri: true}
}

func normalise(m *managerv3.HttpConnectionManager, kind meshv1alpha1.MeshConfig_ProxyPathNormalization_NormalizationType) {
	m.NormalizePath = wrapperspb.Bool(kind != meshv1alpha1.MeshConfig_ProxyPathNormalization_NONE)
	switch kind {
	case meshv1alpha1.MeshConfig_ProxyPathNormalization_MERGE_SLASHES:
		m.MergeSlashes = true
	case meshv1alpha1.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES:
		m.MergeSlashes = true
		m.PathWithEscapedSlashesAction = managerv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
	default:
	}
}

func filters(o Options) []*managerv3.HttpFilter {
	var out []*managerv3.HttpFilter
	add := func(name string, m proto.Message) {
		out = append(out, &managerv3.HttpFilter{
			Name: name, ConfigType: &managerv3.HttpFilter_TypedConfig{TypedConfig: pack.Any(m)},
		})
	}
	if o.OnDemand {
		// Before all others: they look up the request's route, and what they do would be done twice when the request starts anew with one.
		add(onDemandFilter, findOnDemand())
	}
	if o.GRPCWeb {
		add(grpcWeb, &grpcwebv3.GrpcWeb{})
	}
	add(grpcStats, &grpcstatsv3.FilterConfig{
		EmitFilterState:        true,
		PerMethodStatSpecifier: &grpcstatsv3.FilterConfig_StatsForAllMethods{StatsForAllMethods: wrapperspb.Bool(false)},
	})
	add(FaultFilter, &faultv3.HTTPFault{})
	add(CORSFilter, &corsv3.Cors{})
	if o.Role != SidecarInbound {
		add(alpnFilter, offerALPN())
	}
	if o.Dynamic != nil {
		add(dynamic.HTTPFilter, o.Dynamic)
	}
	add(routerFilter, &routerv3.Router{SuppressEnvoyHeaders: o.Headers.GetEnvoyDebugHeaders().GetDisabled().GetValue()})
	return out
}

// discoveryPatience is how long a request waits for its virtual host. Routes end that limit for requests that have found one.
const discoveryPatience = 5 * time.Second

// streamIdle is no limit, except for requests whose virtual host has to be asked for: without an answer they would wait for ever.
func streamIdle(o Options) *durationpb.Duration {
	if o.OnDemand {
		return durationpb.New(discoveryPatience)
	}
	return durationpb.New(0)
}

// findOnDemand asks for clusters over ADS; virtual hosts are asked for wherever the route configuration takes them.
func findOnDemand() *ondemandv3.OnDemand {
	return &ondemandv3.OnDemand{Odcds: &ondemandv3.OnDemandCds{
		Source: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			ResourceApiVersion:    corev3.ApiVersion_V3,
		},
		Timeout: durationpb.New(clusterTimeout),
	}}
}

// offerALPN lets the chosen cluster decide, per request, what its TLS handshake offers: a port of undeclared protocol has one cluster for HTTP
// and for other bytes, and the server tells them apart by what the client offers.
func offerALPN() *setfilterstatev3.Config {
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
