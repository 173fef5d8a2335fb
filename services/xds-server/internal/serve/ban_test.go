package serve_test

import (
	"context"
	"crypto/tls"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// mutualPort serves a server's ADS to certificates, until the test ends.
func mutualPort(t *testing.T, r *replicaServer, pki *testkit.CA) (address string) {
	t.Helper()
	g, err := rpc.NewServer(rpc.ServerConfig{
		Service: "ads", Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(), Authenticator: auth.MTLS(),
		TLS:    tlsconf.Server(pki.NewSVID("istio-system", "xds-server"), tls.RequireAndVerifyClientCert),
		Policy: auth.Policy{"/envoy.service.discovery.v3.AggregatedDiscoveryService/*": auth.InTrustDomain(pki.TrustDomain)},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.ads.Register(g)
	lis := testkit.LoopbackListener(t)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- rpc.Serve(ctx, g, lis, 0) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return lis.Addr().String()
}

// TestBannedIdentity: its streams end with the reason and new ones are refused with it, others of the namespace go on,
// and when the ban is lifted it is served again.
func TestBannedIdentity(t *testing.T) {
	r := start(t, basicMesh()...)
	pki := testkit.PKI(t)
	address := mutualPort(t, r, pki)
	open := func(account, pod string) discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
		t.Helper()
		conn, err := rpc.Dial(rpc.ClientConfig{Target: address, TLS: tlsconf.Client(pki.NewSVID("default", account), pki.ID("istio-system", "xds-server"))})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		t.Cleanup(cancel)
		stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		// A stream that is refused at once shows it where it is read.
		_ = stream.Send(&discovery.DeltaDiscoveryRequest{Node: node(pod, "default"), TypeUrl: cds, ResourceNamesSubscribe: []string{"*"}})
		return stream
	}
	web, batch := open("web", "web"), open("batch", "batch")
	for _, s := range []discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient{web, batch} {
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	ban := meshtest.Resource(mesh.KindIdentityBan, "", "default.batch", &configv1.Resource{Body: &configv1.Resource_IdentityBan{
		IdentityBan: &configv1.IdentityBan{Identity: "spiffe://cluster.local/ns/default/sa/batch", Reason: "its key was stolen"},
	}})
	r.edit(ban)
	r.ads.EnforceBans(r.state)
	refused := func(what string, err error) {
		t.Helper()
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "its key was stolen") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := batch.Recv()
	refused("open stream", err)
	_, err = open("batch", "batch").Recv()
	refused("new stream", err)
	_, err = open("batch", "web").Recv()
	refused("new stream under another name", err)
	if r.status("web") == nil {
		t.Error("another account of the namespace has lost its stream")
	}
	if _, err := open("web", "web-2").Recv(); err != nil {
		t.Errorf("another account of the namespace: %v", err)
	}
	r.remove(ban)
	r.ads.EnforceBans(r.state)
	if _, err := open("batch", "batch").Recv(); err != nil {
		t.Errorf("after the ban was lifted: %v", err)
	}
}
