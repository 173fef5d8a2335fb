// Package agenttest starts gRPC servers for the agent's tests: ControlPlane is a service of the control plane, such as
// an xds-server or a ca, and Socket is a server on a unix socket of the agent.
package agenttest

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/rpc/rpctest"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
)

// ControlPlane issues certificates and tokens for a test's services and workloads.
type ControlPlane struct {
	PKI    *testkit.CA
	Issuer *testkit.Issuer
}

// NewControlPlane makes a new root and a new issuer of tokens.
func NewControlPlane(t testing.TB) ControlPlane {
	t.Helper()
	return ControlPlane{PKI: testkit.PKI(t), Issuer: testkit.NewIssuer(t)}
}

// Serve runs a service on lis, with the identity of a service account of istio-system, until the test ends or stop
// kills it like a crash. Clients may call the methods of one gRPC service, with a certificate or a token.
func (c ControlPlane) Serve(t testing.TB, lis net.Listener, account, service string, register func(*grpc.Server)) (stop func()) {
	t.Helper()
	jwt, err := auth.NewJWT(auth.JWTConfig{
		JWKSFile: c.Issuer.JWKSFile, Issuer: c.Issuer.Name, Audiences: []string{contract.TokenAudience}, TrustDomain: c.PKI.TrustDomain,
	})
	if err != nil {
		t.Fatal(err)
	}
	return rpctest.Serve(t, lis, rpc.ServerConfig{
		Service:       account,
		TLS:           tlsconf.Server(c.PKI.NewSVID(contract.SystemNamespace, account), tls.VerifyClientCertIfGiven),
		Authenticator: auth.FirstOf(auth.MTLS(), jwt),
		Policy:        auth.Policy{"/" + service + "/*": auth.AnyIdentity()},
	}, register)
}

// Socket serves one gRPC service to anybody on a unix socket until the test ends, and returns a client of it. cfg and
// options are for settings of the server besides.
func Socket(t testing.TB, service string, register func(*grpc.Server), cfg rpc.ServerConfig,
	options ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "socket")
	lis, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Service, cfg.Insecure, cfg.Policy = "socket", true, auth.Policy{"/" + service + "/*": auth.Anonymous()}
	rpctest.Serve(t, lis, cfg, register, options...)
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
