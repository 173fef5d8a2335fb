package app_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/rpc/rpctest"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/app"
)

// caFake tells in a certificate's place by whom which token was forwarded for whom.
type caFake struct {
	cav1.UnimplementedForwardingServiceServer
}

func (caFake) ForwardCertificateRequest(ctx context.Context, req *cav1.ForwardCertificateRequestRequest) (
	*cav1.ForwardCertificateRequestResponse, error) {
	by, _ := auth.PeerFrom(ctx)
	return &cav1.ForwardCertificateRequestResponse{
		CertificateChain: []string{fmt.Sprintf("%s by %s with %s", req.GetIdentity(), by.ID, req.GetToken())}}, nil
}

// startCA serves a caFake as ca does, to xds-server alone.
func startCA(t *testing.T, pki *testkit.CA) string {
	t.Helper()
	lis := testkit.LoopbackListener(t)
	rpctest.Serve(t, lis, rpc.ServerConfig{
		Service: "ca", Authenticator: auth.MTLS(),
		TLS: tlsconf.Server(pki.NewSVID(contract.SystemNamespace, contract.CAAccount), tls.RequireAndVerifyClientCert),
		Policy: auth.Policy{cav1.ForwardingService_ForwardCertificateRequest_FullMethodName: auth.IDs(
			pki.ID(contract.SystemNamespace, contract.XDSServerAccount).String())},
	}, func(g *grpc.Server) { cav1.RegisterForwardingServiceServer(g, caFake{}) })
	return lis.Addr().String()
}

// TestCertificateRequestsOnTheADSPort: whoever may have a stream may ask for a certificate, with its own token; nobody
// else reaches ca through xds-server.
func TestCertificateRequestsOnTheADSPort(t *testing.T) {
	pki, issuer := testkit.PKI(t), testkit.NewIssuer(t)
	ca := startCA(t, pki)
	serve := func(change func(*app.Options)) *instance {
		return startServer(t, pki, "127.0.0.1:1", noop.NewTracerProvider(), func(o *app.Options) {
			o.JWKSFile, o.Issuer, o.CAAddress, o.PlaintextAddress = issuer.JWKSFile, issuer.Name, ca, "127.0.0.1:0"
			change(o)
		})
	}
	server := serve(func(*app.Options) {})
	closed := serve(func(o *app.Options) { o.ForwardCertificateRequests = false })
	away := serve(func(o *app.Options) { o.CAAddress = "127.0.0.1:1" })
	id := pki.ID(contract.SystemNamespace, contract.XDSServerAccount)
	anonymous, certificate := tlsconf.Client(pki.RootsOnly(), id), tlsconf.Client(pki.NewSVID("default", "web"), id)
	stranger := tlsconf.Client(testkit.PKI(t).NewSVID("default", "web"), id)
	token := issuer.TokenFile("default", "web", contract.TokenAudience)
	for name, tc := range map[string]struct {
		at   string
		cfg  rpc.ClientConfig
		want codes.Code
	}{
		"token":                 {server.secure, rpc.ClientConfig{TLS: anonymous, TokenFile: token}, codes.OK},
		"certificate and token": {server.secure, rpc.ClientConfig{TLS: certificate, TokenFile: token}, codes.OK},
		"certificate":           {server.secure, rpc.ClientConfig{TLS: certificate}, codes.Unauthenticated},
		"nothing":               {server.secure, rpc.ClientConfig{TLS: anonymous}, codes.Unauthenticated},
		"token for something else": {server.secure, rpc.ClientConfig{TLS: anonymous, TokenFile: issuer.TokenFile("default", "web", "vault")},
			codes.Unauthenticated},
		"a stranger":                 {server.secure, rpc.ClientConfig{TLS: stranger, TokenFile: token}, codes.Unavailable},
		"plaintext":                  {server.plaintext, rpc.ClientConfig{Insecure: true}, codes.PermissionDenied},
		"where nothing is forwarded": {closed.secure, rpc.ClientConfig{TLS: anonymous, TokenFile: token}, codes.PermissionDenied},
		"while ca is away":           {away.secure, rpc.ClientConfig{TLS: anonymous, TokenFile: token}, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			client := security.NewIstioCertificateServiceClient(dial(t, tc.at, tc.cfg))
			res, err := client.CreateCertificate(t.Context(), &security.IstioCertificateRequest{Csr: "csr"})
			if status.Code(err) != tc.want {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if want := "spiffe://cluster.local/ns/default/sa/web by " + id.String() + " with "; err == nil &&
				!strings.HasPrefix(res.GetCertChain()[0], want) {
				t.Errorf("forwarded %q, want %q and the token", res.GetCertChain(), want)
			}
		})
	}
}

// TestTLS12OnTheADSPort: an agent that speaks nothing newer is served if an operator wants that, and not by default.
func TestTLS12OnTheADSPort(t *testing.T) {
	pki := testkit.PKI(t)
	serve := func(version string) string {
		return startServer(t, pki, "127.0.0.1:1", noop.NewTracerProvider(), func(o *app.Options) { o.TLSMinVersion = version }).secure
	}
	open, usual := serve("1.2"), serve("1.3")
	for name, tc := range map[string]struct {
		at    string
		suite uint16
		want  bool
	}{
		"approved suite": {open, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, true},
		"other suite":    {open, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, false},
		"by default":     {usual, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, false},
	} {
		cfg := tlsconf.Client(pki.NewSVID("default", "web"), pki.ID(contract.SystemNamespace, contract.XDSServerAccount))
		cfg.MinVersion, cfg.MaxVersion, cfg.CipherSuites, cfg.NextProtos = tls.VersionTLS12, tls.VersionTLS12, []uint16{tc.suite}, []string{"h2"}
		conn, err := tls.Dial("tcp", tc.at, cfg)
		if (err == nil) != tc.want {
			t.Errorf("%s: %v, want success %v", name, err, tc.want)
		}
		if err == nil {
			_ = conn.Close() // the handshake was all
		}
	}
}
