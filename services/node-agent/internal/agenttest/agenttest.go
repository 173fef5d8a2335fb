// Package agenttest starts gRPC servers for the agent's tests: ControlPlane is a service of the control plane, such as
// an xds-server or a ca, and Socket is a server on a unix socket of the agent.
package agenttest

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
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
		JWKSFile: c.Issuer.JWKSFile, Issuer: c.Issuer.Name, Audiences: []string{"istio-ca"}, TrustDomain: c.PKI.TrustDomain,
	})
	if err != nil {
		t.Fatal(err)
	}
	server, err := rpc.NewServer(rpc.ServerConfig{
		Service: account, Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(),
		TLS:           tlsconf.Server(c.PKI.NewSVID("istio-system", account), tls.VerifyClientCertIfGiven),
		Authenticator: auth.FirstOf(auth.MTLS(), jwt),
		Policy:        auth.Policy{"/" + service + "/*": auth.AnyIdentity()},
	})
	if err != nil {
		t.Fatal(err)
	}
	register(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(lis)
	}()
	stop = sync.OnceFunc(func() { server.Stop(); <-done })
	t.Cleanup(stop)
	return stop
}

// Socket serves one gRPC service to anybody on a unix socket until the test ends, and returns a client of it. cfg and
// options are for settings of the server besides.
func Socket(t testing.TB, service string, register func(*grpc.Server), cfg rpc.ServerConfig, options ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	cfg.Service, cfg.Log, cfg.Registerer, cfg.Insecure = "socket", testkit.Logger(t), prometheus.NewRegistry(), true
	cfg.Policy = auth.Policy{"/" + service + "/*": auth.Anonymous()}
	server, err := rpc.NewServer(cfg, options...)
	if err != nil {
		t.Fatal(err)
	}
	register(server)
	path := filepath.Join(t.TempDir(), "socket")
	lis, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, func(ctx context.Context) error { return rpc.Serve(ctx, server, lis, 0) })
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
