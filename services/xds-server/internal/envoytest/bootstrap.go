package envoytest

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	upstreams "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	secretservice "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	xds "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/pkg/testkit"
)

// Bootstrap makes a configuration with which Envoy takes everything by ADS from the first xds-server that can be
// reached, and certificates by SDS from the cluster sds-grpc, as a sidecar does. Addresses are host:port or paths of
// unix sockets. sds is empty if Envoy needs no certificates.
func Bootstrap(t testing.TB, node *core.Node, protocol core.ApiConfigSource_ApiType, sds string, servers ...string) *bootstrap.Bootstrap {
	t.Helper()
	node = proto.CloneOf(node)
	if node.GetCluster() == "" {
		node.Cluster = "test" // Envoy requires it
	}
	clusters := []*cluster.Cluster{GRPCCluster(t, "xds-grpc", servers...)}
	if sds != "" {
		clusters = append(clusters, GRPCCluster(t, "sds-grpc", sds))
	}
	ads := &core.ConfigSource{
		ResourceApiVersion: core.ApiVersion_V3, ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}},
	}
	soon := &core.BackoffStrategy{BaseInterval: durationpb.New(50 * time.Millisecond), MaxInterval: durationpb.New(100 * time.Millisecond)}
	return &bootstrap.Bootstrap{
		Node: node,
		DynamicResources: &bootstrap.Bootstrap_DynamicResources{
			AdsConfig: &core.ApiConfigSource{
				ApiType: protocol, TransportApiVersion: core.ApiVersion_V3, SetNodeOnFirstMessageOnly: true,
				GrpcServices: []*core.GrpcService{{TargetSpecifier: &core.GrpcService_EnvoyGrpc_{EnvoyGrpc: &core.GrpcService_EnvoyGrpc{
					ClusterName: "xds-grpc", RetryPolicy: &core.RetryPolicy{RetryBackOff: soon},
				}}}},
			},
			CdsConfig: ads, LdsConfig: ads,
		},
		StaticResources: &bootstrap.Bootstrap_StaticResources{Clusters: clusters},
	}
}

// GRPCCluster makes a cluster that leads to the first address that can be reached.
func GRPCCluster(t testing.TB, name string, addresses ...string) *cluster.Cluster {
	t.Helper()
	options, err := anypb.New(&upstreams.HttpProtocolOptions{UpstreamProtocolOptions: &upstreams.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &upstreams.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &upstreams.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
				Http2ProtocolOptions: &core.Http2ProtocolOptions{}},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster.Cluster{
		Name: name, ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_STATIC}, ConnectTimeout: durationpb.New(time.Second),
		LoadAssignment:                &endpoint.ClusterLoadAssignment{ClusterName: name},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
	}
	for i, a := range addresses {
		c.LoadAssignment.Endpoints = append(c.LoadAssignment.Endpoints, &endpoint.LocalityLbEndpoints{
			Priority: uint32(i), //nolint:gosec // few
			LbEndpoints: []*endpoint.LbEndpoint{{HostIdentifier: &endpoint.LbEndpoint_Endpoint{
				Endpoint: &endpoint.Endpoint{Address: address(t, a)},
			}}},
		})
	}
	if len(addresses) > 1 {
		often := durationpb.New(100 * time.Millisecond)
		c.HealthChecks = []*core.HealthCheck{{
			Timeout: durationpb.New(time.Second), Interval: often, NoTrafficInterval: often,
			UnhealthyThreshold: wrapperspb.UInt32(1), HealthyThreshold: wrapperspb.UInt32(1),
			HealthChecker: &core.HealthCheck_TcpHealthCheck_{TcpHealthCheck: &core.HealthCheck_TcpHealthCheck{}},
		}}
	}
	return c
}

func address(t testing.TB, a string) *core.Address {
	t.Helper()
	if a[0] == '/' {
		return Pipe(a)
	}
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: host, PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(n)},
	}}}
}

// Secrets serves the certificate of a workload and the trusted roots by SDS until the test ends, as node-agent does. It
// returns the path of its socket.
func Secrets(t testing.TB, pki *testkit.CA, namespace, serviceAccount string) (socket string) {
	t.Helper()
	m, err := pki.NewSVID(namespace, serviceAccount).Current()
	if err != nil {
		t.Fatal(err)
	}
	inline := func(b []byte) *core.DataSource {
		return &core.DataSource{Specifier: &core.DataSource_InlineBytes{InlineBytes: b}}
	}
	secrets := cache.NewLinearCache(resource.SecretType, cache.WithInitialResources(map[string]types.Resource{
		"default": &tlsv3.Secret{Name: "default", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(m.CertPEM), PrivateKey: inline(m.KeyPEM),
		}}},
		"ROOTCA": &tlsv3.Secret{Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inline(m.RootsPEM),
		}}},
	}))
	g := grpc.NewServer()
	secretservice.RegisterSecretDiscoveryServiceServer(g, xds.NewServer(t.Context(), secrets, nil))
	socket = Socket(t)
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(lis) }() // ends with Stop
	t.Cleanup(g.Stop)
	return socket
}

// Socket returns a path for a unix socket that is short enough for one.
func Socket(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "socket")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "s")
}

// Secure makes the bootstrap's connections to xds-server use TLS, with the workload's certificate, and require this
// identity of the server.
func Secure(t testing.TB, config *bootstrap.Bootstrap, pki *testkit.CA, namespace, serviceAccount, server string) *bootstrap.Bootstrap {
	t.Helper()
	m, err := pki.NewSVID(namespace, serviceAccount).Current()
	if err != nil {
		t.Fatal(err)
	}
	inline := func(b []byte) *core.DataSource {
		return &core.DataSource{Specifier: &core.DataSource_InlineBytes{InlineBytes: b}}
	}
	socket, err := anypb.New(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsParams: &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
			TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
		AlpnProtocols:   []string{"h2"},
		TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inline(m.CertPEM), PrivateKey: inline(m.KeyPEM)}},
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inline(m.RootsPEM),
			MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{
				SanType: tlsv3.SubjectAltNameMatcher_URI,
				Matcher: &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Exact{Exact: server}},
			}},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	config = proto.CloneOf(config)
	config.StaticResources.Clusters[0].TransportSocket = &core.TransportSocket{
		Name: "envoy.transport_sockets.tls", ConfigType: &core.TransportSocket_TypedConfig{TypedConfig: socket},
	}
	return config
}
