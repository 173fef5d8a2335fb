package translate_test

import (
	"context"
	"net"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/envoytest"
)

// startProxy runs Envoy with the resources, the workload's certificate and further secrets, and waits until it is
// ready. The test fails if Envoy has rejected anything.
func startProxy(t *testing.T, name string, b built, certificate *testkit.Static, secrets ...*tlsv3.Secret) *envoytest.Process {
	t.Helper()
	xds := envoytest.Socket(t)
	serveXDS(t, xds, name, b, certificate, secrets...)
	p := envoytest.Start(t, envoytest.Bootstrap(t, &corev3.Node{Id: name}, corev3.ApiConfigSource_GRPC, xds, xds), nil)
	p.Ready()
	t.Cleanup(func() {
		for stat, n := range p.Stats("update_rejected") {
			if n != 0 {
				t.Errorf("%s: %s is %d", name, stat, n)
			}
		}
	})
	return p
}

// serveXDS serves the resources to the node with this name.
func serveXDS(t *testing.T, socket, name string, b built, certificate *testkit.Static, secrets ...*tlsv3.Secret) {
	t.Helper()
	material, err := certificate.Current()
	if err != nil {
		t.Fatal(err)
	}
	inline := func(content []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: content}}
	}
	resources := map[resourcev3.Type][]types.Resource{
		resourcev3.ClusterType: list(b.clusters), resourcev3.EndpointType: list(b.endpoints),
		resourcev3.ListenerType: list(b.listeners), resourcev3.RouteType: list(b.routes),
		resourcev3.SecretType: {
			&tlsv3.Secret{Name: "default", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
				CertificateChain: inline(material.CertPEM), PrivateKey: inline(material.KeyPEM),
			}}},
			&tlsv3.Secret{Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
				TrustedCa: inline(material.RootsPEM),
			}}},
		},
	}
	for _, secret := range secrets {
		resources[resourcev3.SecretType] = append(resources[resourcev3.SecretType], secret)
	}
	snapshot, err := cachev3.NewSnapshot("1", resources)
	if err != nil {
		t.Fatal(err)
	}
	cache := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
	if err := cache.SetSnapshot(t.Context(), name, snapshot); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	handler := serverv3.NewServer(context.Background(), cache, nil)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, handler)
	secretv3.RegisterSecretDiscoveryServiceServer(server, handler)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

func list(messages []proto.Message) []types.Resource {
	out := make([]types.Resource, 0, len(messages))
	for _, m := range messages {
		out = append(out, m)
	}
	return out
}
