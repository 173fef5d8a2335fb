package replicas

import (
	"crypto/tls"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/rpc/rpctest"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// Only the ca gets what a replica knows, and a replica believes only the ca.
func TestAPeerThatIsNotTheCAIsRefused(t *testing.T) {
	f := newFleet(t, "ca-0")
	pki := testkit.PKI(t)
	own := pki.ID("istio-system", "ca")
	serve := func(account string) string {
		lis := testkit.LoopbackListener(t)
		rpctest.Serve(t, lis, rpc.ServerConfig{
			Service: "ca", TLS: tlsconf.ServerFrom(tls.VersionTLS13, pki.NewSVID("istio-system", account), tls.VerifyClientCertIfGiven),
			Authenticator: auth.MTLS(),
			Policy:        auth.Policy{cav1.ReplicaService_Exchange_FullMethodName: auth.IDs(own.String())},
		}, func(s *grpc.Server) { cav1.RegisterReplicaServiceServer(s, f.replicas["ca-0"].Set) })
		return lis.Addr().String()
	}
	for name, tc := range map[string]struct {
		server, client string
		want           codes.Code
	}{
		"the ca and the ca":          {"ca", "ca", codes.OK},
		"a workload asks":            {"ca", "xds-server", codes.PermissionDenied},
		"a workload is in its place": {"xds-server", "ca", codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			conn := testkit.Must(rpc.Dial(rpc.ClientConfig{
				Target: serve(tc.server), TLS: tlsconf.Client(pki.NewSVID("istio-system", tc.client), own),
			}))(t)
			t.Cleanup(func() { _ = conn.Close() })
			stream, err := cav1.NewReplicaServiceClient(conn).Exchange(t.Context(), &cav1.ExchangeRequest{Replica: "x", Run: "y"})
			if err == nil {
				_, err = stream.Recv()
			}
			if status.Code(err) != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}
