package bootstrap

import (
	"cmp"
	"net/netip"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/node-agent/internal/sds"
)

// Names of clusters of the servers that a ProxyConfig names. They are Istio's, because EnvoyFilters and the listeners
// of a control plane refer to them.
const (
	ZipkinCluster    = "zipkin"
	DatadogCluster   = "datadog_agent"
	MetricsCluster   = "envoy_metrics_service"
	AccessLogCluster = "envoy_accesslog_service"
)

// remotes adds the clusters of the servers that a ProxyConfig names, the tracer, and the sinks of stats.
func remotes(b *bootstrapv3.Bootstrap, in Input) error {
	t := in.Telemetry
	add := func(name string, r Remote, h2 bool) error {
		c, err := remoteCluster(name, r, h2)
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
		return err
	}
	if t.Tracer != nil {
		name := ZipkinCluster
		if t.Tracer.Datadog {
			name = DatadogCluster
		}
		if err := add(name, t.Tracer.Remote, false); err != nil {
			return err
		}
		tracing, err := tracer(t.Tracer, in.Node.GetCluster())
		if err != nil {
			return err
		}
		b.Tracing = tracing //nolint:staticcheck // listeners without a tracer of their own use it
	}
	if t.AccessLog != nil {
		if err := add(AccessLogCluster, *t.AccessLog, true); err != nil {
			return err
		}
	}
	if t.Metrics != nil {
		if err := add(MetricsCluster, *t.Metrics, true); err != nil {
			return err
		}
		err := addSink(b, "envoy.stat_sinks.metrics_service", &metricsv3.MetricsServiceConfig{
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: MetricsCluster},
			}},
		})
		if err != nil {
			return err
		}
	}
	if in.Statsd.IsValid() {
		return addSink(b, "envoy.stat_sinks.statsd",
			&metricsv3.StatsdSink{StatsdSpecifier: &metricsv3.StatsdSink_Address{Address: socketAddress(in.Statsd)}})
	}
	return nil
}

func addSink(b *bootstrapv3.Bootstrap, name string, config validated) error {
	packed, err := pack(config)
	b.StatsSinks = append(b.StatsSinks, &metricsv3.StatsSink{Name: name, ConfigType: &metricsv3.StatsSink_TypedConfig{TypedConfig: packed}})
	return err
}

// tracer is the tracer of listeners that ask for spans and name none.
func tracer(t *Tracer, service string) (*tracev3.Tracing, error) {
	name, config := "envoy.tracers.zipkin", validated(&tracev3.ZipkinConfig{
		CollectorCluster:         ZipkinCluster,
		CollectorEndpoint:        "/api/v2/spans",
		CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
		TraceId_128Bit:           true,
		SharedSpanContext:        wrapperspb.Bool(false),
	})
	if t.Datadog {
		name, config = "envoy.tracers.datadog", &tracev3.DatadogConfig{CollectorCluster: DatadogCluster, ServiceName: service}
	}
	packed, err := pack(config)
	if err != nil {
		return nil, err
	}
	return &tracev3.Tracing{Http: &tracev3.Tracing_Http{Name: name, ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: packed}}}, nil
}

// remoteCluster is a cluster of one server, whose name is resolved as long as Envoy runs.
func remoteCluster(name string, r Remote, h2 bool) (*clusterv3.Cluster, error) {
	c := staticCluster(name, &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: r.Host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(r.Port)},
	}}})
	if _, err := netip.ParseAddr(r.Host); err != nil {
		resolve, err := pack(&dnsv3.DnsCluster{RespectDnsTtl: true, DnsRefreshRate: durationpb.New(30 * time.Second)})
		if err != nil {
			return nil, err
		}
		c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "envoy.cluster.dns",
			TypedConfig: resolve}}
	}
	if h2 {
		options, err := http2()
		if err != nil {
			return nil, err
		}
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: options}
	}
	if k := r.Keepalive; k != nil {
		out := &corev3.TcpKeepalive{}
		if n := k.GetProbes(); n > 0 {
			out.KeepaliveProbes = wrapperspb.UInt32(n)
		}
		if d := k.GetTime().GetSeconds(); d > 0 {
			out.KeepaliveTime = wrapperspb.UInt32(uint32(min(d, 1<<31)))
		}
		if d := k.GetInterval().GetSeconds(); d > 0 {
			out.KeepaliveInterval = wrapperspb.UInt32(uint32(min(d, 1<<31)))
		}
		c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: out}
	}
	context := upstreamTLS(name, r, h2)
	if context == nil {
		return c, nil
	}
	packed, err := pack(context)
	if err != nil {
		return nil, err
	}
	c.TransportSocket = &corev3.TransportSocket{Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed}}
	return c, nil
}

// upstreamTLS is nil for a connection without TLS. Certificates and roots come from the agent, which watches the files.
func upstreamTLS(name string, r Remote, h2 bool) *tlsv3.UpstreamTlsContext {
	var certificate, roots string
	sni := r.TLS.GetSni()
	switch r.TLS.GetMode() {
	case networking.ClientTLSSettings_MUTUAL:
		certificate, roots = "file-cert:"+r.TLS.GetClientCertificate()+"~"+r.TLS.GetPrivateKey(), fileRoots(r.TLS)
	case networking.ClientTLSSettings_SIMPLE:
		roots = fileRoots(r.TLS)
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		certificate, roots = sds.Default, sds.RootCA
		sni = cmp.Or(sni, name)
	default:
		return nil
	}
	// Envoy's own maximum for clients is TLS 1.2.
	common := &tlsv3.CommonTlsContext{TlsParams: &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3}}
	if h2 {
		common.AlpnProtocols = []string{"h2"}
	}
	if certificate != "" {
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{secret(certificate)}
	}
	validation := &tlsv3.CertificateValidationContext{}
	for _, san := range r.TLS.GetSubjectAltNames() {
		kind := tlsv3.SubjectAltNameMatcher_DNS
		if strings.Contains(san, "://") {
			kind = tlsv3.SubjectAltNameMatcher_URI
		}
		validation.MatchTypedSubjectAltNames = append(validation.MatchTypedSubjectAltNames, &tlsv3.SubjectAltNameMatcher{
			SanType: kind, Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: san}},
		})
	}
	common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext: validation, ValidationContextSdsSecretConfig: secret(roots),
		},
	}
	return &tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: sni}
}

func fileRoots(tls *networking.ClientTLSSettings) string {
	if file := tls.GetCaCertificates(); file != "" {
		return "file-root:" + file
	}
	return "file-root:system"
}

// secret names a secret that the agent serves.
func secret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion:  corev3.ApiVersion_V3,
		InitialFetchTimeout: durationpb.New(0),
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3, SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: SDSCluster},
			}}},
		}},
	}}
}

// outlierLog makes Envoy log ejections of endpoints to a file.
func outlierLog(path string) *bootstrapv3.ClusterManager {
	if path == "" {
		return nil
	}
	return &bootstrapv3.ClusterManager{OutlierDetection: &bootstrapv3.ClusterManager_OutlierDetection{EventLogPath: path}}
}
