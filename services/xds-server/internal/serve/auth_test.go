package serve_test

import (
	"crypto/tls"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/serve"
	"fairlead.dev/services/xds-server/internal/servetest"
)

// secure serves ADS on a port that requires client certificates. connect dials it with a certificate.
func (r *fixture) secure(t *testing.T, pki *testkit.CA) (connect func(caller *testkit.Static) *grpc.ClientConn) {
	t.Helper()
	lis := testkit.LoopbackListener(t)
	t.Cleanup(r.Listen(lis, rpc.ServerConfig{
		Authenticator: auth.MTLS(), Policy: servetest.Policy(auth.InTrustDomain(pki.TrustDomain)),
		TLS: tlsconf.Server(pki.NewSVID(contract.SystemNamespace, contract.XDSServerAccount), tls.RequireAndVerifyClientCert),
	}))
	return func(caller *testkit.Static) *grpc.ClientConn {
		conn, err := rpc.Dial(rpc.ClientConfig{Target: lis.Addr().String(),
			TLS: tlsconf.Client(caller, pki.ID(contract.SystemNamespace, contract.XDSServerAccount))})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // the test is over
		return conn
	}
}

// TestNodeMustBelongToTheCallersIdentity: on the authenticated port, a caller may only be a proxy of its own namespace
// and service account.
func TestNodeMustBelongToTheCallersIdentity(t *testing.T) {
	r := start(t, basicMesh()...)
	pki := testkit.PKI(t)
	connect := r.secure(t, pki)
	for name, tc := range map[string]struct {
		caller *testkit.Static
		node   *core.Node
		want   codes.Code
	}{
		"own":                      {pki.NewSVID("default", "web"), node("pod", "default"), codes.OK},
		"own account claimed":      {pki.NewSVID("default", "web"), claiming("web"), codes.OK},
		"another account":          {pki.NewSVID("default", "web"), claiming("admin"), codes.PermissionDenied},
		"another namespace":        {pki.NewSVID("other", "web"), node("pod", "default"), codes.PermissionDenied},
		"another namespace's name": {pki.NewSVID("default", "web"), node("pod.default", "other"), codes.PermissionDenied},
		"no certificate":           {pki.RootsOnly(), node("pod", "default"), codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := discovery.NewAggregatedDiscoveryServiceClient(connect(tc.caller)).DeltaAggregatedResources(t.Context())
			if err == nil {
				err = stream.Send(&discovery.DeltaDiscoveryRequest{Node: tc.node, TypeUrl: cds, ResourceNamesSubscribe: []string{"*"}})
			}
			if stream != nil {
				_, err = stream.Recv()
			}
			if got := status.Code(err); got != tc.want {
				t.Errorf("got %v (%v), want %v", got, err, tc.want)
			}
			if tc.want == codes.OK {
				if got := r.until("pod", "known",
					func(*configv1.ProxyStatus) bool { return true }).GetIdentity(); got != "spiffe://cluster.local/ns/default/sa/web" {
					t.Errorf("identity %q", got)
				}
			}
		})
	}
}

// TestClientReconnectsWhenItsCertificateExpires: the client is asked to reconnect before pkg/rpc closes its connection.
func TestClientReconnectsWhenItsCertificateExpires(t *testing.T) {
	r := startWith(t, setup{log: testkit.Logger(t), change: func(c *serve.Config) { c.MaxConnectionAge = -1 }}, basicMesh())
	pki := testkit.PKI(t)
	c := r.deltaOver(t.Context(), r.secure(t, pki)(pki.NewSVID("default", "web")), node("pod", "default"))
	c.connectAll()
	r.acked("pod")
	r.clock.WaitFor(t, 2) // watchdog and certificate
	r.clock.Advance(time.Hour)
	c.askedToReconnect("certificate of this connection has expired")
}

func claiming(account string) *core.Node {
	n := node("pod", "default")
	n.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"SERVICE_ACCOUNT": structpb.NewStringValue(account)}}
	return n
}
