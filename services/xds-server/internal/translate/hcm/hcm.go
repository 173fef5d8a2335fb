// Package hcm builds HTTP connection managers (Build) with their HTTP filters, access logs and header settings. Package
// listener puts them into filter chains. HTTP filters are in httpfilters.go, access logs, also those of TCP filter
// chains, in accesslog.go. All filters are part of upstream Envoy.
package hcm

import (
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	dfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
	"fairlead.dev/services/xds-server/internal/translate/undelivered"
)

const (
	managerFilter  = "envoy.filters.network.http_connection_manager"
	websocket      = "websocket"
	connect        = "CONNECT"
	meshServerName = "istio-envoy"
)

// Cluster metadata with the ALPN values for TLS connections that carry HTTP; without it the cluster's TLS context
// decides. offerALPN reads it.
const (
	ALPNMetadataNamespace = "fairlead.dev"
	ALPNMetadataKey       = "http_alpn"
)

// Role is the position of a connection manager.
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
	// RouteName names a route configuration to request by RDS; Routes is the route configuration if RouteName is "".
	RouteName string
	Routes    *routev3.RouteConfiguration
	// GRPCWeb translates gRPC-Web requests into gRPC.
	GRPCWeb bool
	// OnDemand requests virtual hosts and clusters that the proxy does not have when a request needs them.
	OnDemand bool
	// Topology describes the proxies in front of a gateway.
	Topology *meshv1alpha1.Topology
	// Dynamic resolves the hosts of requests to DYNAMIC_DNS services; nil if there is no such service.
	Dynamic *dfpv3.FilterConfig
	Mesh    *meshv1alpha1.MeshConfig
	// Policies are the filters of AuthorizationPolicies and RequestAuthentications.
	Policies []*managerv3.HttpFilter
	// Logs are access logs besides MeshConfig's.
	Logs []*accesslogv3.AccessLog
	// Headers configures the headers that the proxy adds.
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
		HttpFilters:       httpFilters(o),
		AccessLog:         append(logs, o.Logs...),
		UseRemoteAddress:  wrapperspb.Bool(o.Role == Gateway),
		StreamIdleTimeout: streamIdle(o),
		Proxy_100Continue: true,
		UpgradeConfigs:    upgrades(o.Role),
		// HTTP/1.0 clients are served as HTTP/1.1 ones; without this Envoy answers 426.
		HttpProtocolOptions: &corev3.Http1ProtocolOptions{AcceptHttp_10: true},
		// Extended CONNECT carries upgrades, such as WebSockets, through HTTP/2.
		Http2ProtocolOptions: &corev3.Http2ProtocolOptions{AllowConnect: true},
	}
	normalizePath(m, o.Mesh.GetPathNormalization().GetNormalization())
	clientCertHeaders(m, o)
	if o.RouteName != "" {
		m.RouteSpecifier = &managerv3.HttpConnectionManager_Rds{Rds: &managerv3.Rds{
			RouteConfigName: o.RouteName,
			ConfigSource:    coreconfig.ADSWithoutTimeout(),
		}}
	} else {
		m.RouteSpecifier = &managerv3.HttpConnectionManager_RouteConfig{RouteConfig: o.Routes}
	}
	packed, err := typedconfig.Checked(m)
	if err != nil {
		return nil, err
	}
	return &listenerv3.Filter{Name: managerFilter, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed}}, nil
}

// upgrades lists the allowed upgrades of requests. An outbound listener allows CONNECT where a route matches it,
// because the application may use an HTTP forward proxy. Inbound, a tunnel would carry requests past the policies: a
// server that is no proxy answers CONNECT with 200 and reads the next request from the tunnel.
func upgrades(role Role) []*managerv3.HttpConnectionManager_UpgradeConfig {
	out := []*managerv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: websocket}}
	if role == SidecarOutbound {
		out = append(out, &managerv3.HttpConnectionManager_UpgradeConfig{UpgradeType: connect})
	}
	return out
}

// clientCertHeaders sets the server header and x-forwarded-client-cert. A sidecar forwards the latter inbound and
// appends its client; a gateway replaces what clients send; an outbound listener removes what the application sends.
func clientCertHeaders(m *managerv3.HttpConnectionManager, o Options) {
	switch o.Role {
	case SidecarInbound:
		m.ForwardClientCertDetails = managerv3.HttpConnectionManager_APPEND_FORWARD
		m.SetCurrentClientCertDetails = clientCertDetails()
		m.LocalReplyConfig = undelivered.LocalReply()
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
	// As in Istio, outbound listeners keep Envoy's default, "envoy".
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

func normalizePath(m *managerv3.HttpConnectionManager, kind meshv1alpha1.MeshConfig_ProxyPathNormalization_NormalizationType) {
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

// virtualHostTimeout limits how long a request waits for its virtual host. Routes lift the limit for requests that have
// found one.
const virtualHostTimeout = 5 * time.Second

// streamIdle is unlimited, except for on-demand proxies: their requests would wait forever for a virtual host that does
// not come.
func streamIdle(o Options) *durationpb.Duration {
	if o.OnDemand {
		return durationpb.New(virtualHostTimeout)
	}
	return durationpb.New(0)
}
