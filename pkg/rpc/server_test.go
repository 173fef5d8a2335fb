package rpc_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

const testService = "/grpc.testing.TestService/"

// service answers with the caller's identity; some lengths of a request's body have a special meaning.
type service struct {
	testpb.UnimplementedTestServiceServer
	called atomic.Int32
}

const panicSize = 666

func (s *service) UnaryCall(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	s.called.Add(1)
	if r.GetResponseSize() == panicSize {
		panic("handler bug with a secret")
	}
	p, _ := auth.PeerFrom(ctx)
	return &testpb.SimpleResponse{Username: p.ID.String(), OauthScope: p.Method}, nil
}

func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest,
	testpb.StreamingOutputCallResponse]) error {
	s.called.Add(1)
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(r.GetPayload().GetBody()) == panicSize {
			panic("stream bug")
		}
		p, _ := auth.PeerFrom(stream.Context())
		if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: []byte(p.ID.String())}}); err != nil {
			return err
		}
	}
}

// spyCodec counts messages decoded by the server.
type spyCodec struct {
	encoding.CodecV2
	decoded *atomic.Int32
}

func (c spyCodec) Unmarshal(data mem.BufferSlice, v any) error {
	c.decoded.Add(1)
	return c.CodecV2.Unmarshal(data, v)
}

type fixture struct {
	ca      *testkit.CA
	issuer  *testkit.Issuer
	addr    string
	service *service
	decoded atomic.Int32
	reg     *prometheus.Registry
	log     *testkit.Buffer
}

// start serves over TLS, accepts certificates and tokens, and stops at the end of the test.
func start(t *testing.T, change func(*rpc.ServerConfig)) *fixture {
	t.Helper()
	f := &fixture{
		ca: testkit.PKI(t), issuer: testkit.NewIssuer(t), service: &service{}, reg: prometheus.NewRegistry(), log: &testkit.Buffer{},
	}
	j, err := auth.NewJWT(auth.JWTConfig{
		JWKSFile: f.issuer.JWKSFile, Issuer: f.issuer.Name, Audiences: []string{"istio-ca"}, TrustDomain: f.ca.TrustDomain,
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := rpc.ServerConfig{
		Service: "test", Log: slog.New(slog.NewJSONHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Registerer: f.reg,
		TLS:           tlsconf.Server(f.ca.NewSVID("istio-system", "server"), tls.VerifyClientCertIfGiven),
		Authenticator: auth.FirstOf(auth.MTLS(), j),
		Policy: auth.Policy{
			testService + "UnaryCall":      auth.IDs(f.ca.ID("istio-system", "client").String()),
			testService + "FullDuplexCall": auth.AnyIdentity(),
		},
	}
	if change != nil {
		change(&cfg)
	}
	server, err := rpc.NewServer(cfg, grpc.ForceServerCodecV2(spyCodec{encoding.GetCodecV2(proto.Name), &f.decoded}))
	if err != nil {
		t.Fatal(err)
	}
	testpb.RegisterTestServiceServer(server, f.service)
	lis := testkit.LoopbackListener(t)
	f.addr = lis.Addr().String()
	serve(t, server, lis)
	return f
}

func serve(t *testing.T, s *grpc.Server, lis net.Listener) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rpc.Serve(ctx, s, lis, 0) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

func (f *fixture) dial(t *testing.T, src tlsconf.Source, change func(*rpc.ClientConfig)) testpb.TestServiceClient {
	t.Helper()
	return testpb.NewTestServiceClient(f.conn(t, src, change))
}

func (f *fixture) conn(t *testing.T, src tlsconf.Source, change func(*rpc.ClientConfig)) *grpc.ClientConn {
	t.Helper()
	cfg := rpc.ClientConfig{Target: f.addr, TLS: tlsconf.Client(src, f.ca.ID("istio-system", "server"))}
	if change != nil {
		change(&cfg)
	}
	conn, err := rpc.Dial(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// rejected returns how many connections the server has refused or closed for a reason.
func (f *fixture) rejected(t *testing.T, reason string) int {
	t.Helper()
	families, err := f.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "fairlead_rpc_server_connections_rejected_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			if m.GetLabel()[0].GetValue() == reason {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestAuthenticatedCalls(t *testing.T) {
	f := start(t, nil)
	client := f.ca.NewSVID("istio-system", "client")

	r, err := f.dial(t, client, nil).UnaryCall(t.Context(), &testpb.SimpleRequest{})
	if err != nil || r.GetUsername() != "spiffe://cluster.local/ns/istio-system/sa/client" || r.GetOauthScope() != auth.MethodMTLS {
		t.Errorf("by certificate: %v %v", r, err)
	}
	token := f.issuer.TokenFile("istio-system", "client", "istio-ca")
	byToken := f.dial(t, f.ca.RootsOnly(), func(c *rpc.ClientConfig) { c.TokenFile = token })
	r, err = byToken.UnaryCall(t.Context(), &testpb.SimpleRequest{})
	if err != nil || r.GetOauthScope() != auth.MethodJWT {
		t.Errorf("by token: %v %v", r, err)
	}
	// The token is read for every call.
	testkit.WriteFile(t, token, []byte(f.issuer.Token("bookinfo", "reviews", "istio-ca")))
	_, err = byToken.UnaryCall(t.Context(), &testpb.SimpleRequest{})
	wantCode(t, err, codes.PermissionDenied)
	testkit.WriteFile(t, token, nil)
	if _, err = byToken.UnaryCall(t.Context(), &testpb.SimpleRequest{}); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("empty token file: %v", err)
	}

	stream, err := f.dial(t, client, nil).FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || string(m.GetPayload().GetBody()) != "spiffe://cluster.local/ns/istio-system/sa/client" {
		t.Errorf("stream: %v %v", m, err)
	}
}

func TestRefusedBeforeDecoding(t *testing.T) {
	f := start(t, nil)
	anonymous := f.dial(t, f.ca.RootsOnly(), nil)
	workload := f.dial(t, f.ca.NewSVID("bookinfo", "reviews"), nil)
	bearer := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	}
	unary := func(ctx context.Context, c testpb.TestServiceClient) error {
		_, err := c.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 1<<20)}})
		return err
	}
	stream := func(ctx context.Context, c testpb.TestServiceClient) error {
		s, err := c.FullDuplexCall(ctx)
		if err != nil {
			return err
		}
		_ = s.Send(&testpb.StreamingOutputCallRequest{})
		_, err = s.Recv()
		return err
	}
	unlisted := func(ctx context.Context, c testpb.TestServiceClient) error {
		_, err := c.EmptyCall(ctx, &testpb.Empty{})
		return err
	}
	for name, tc := range map[string]struct {
		call   func(context.Context, testpb.TestServiceClient) error
		client testpb.TestServiceClient
		ctx    context.Context
		want   codes.Code
	}{
		"unary, nothing presented":      {unary, anonymous, t.Context(), codes.Unauthenticated},
		"stream, nothing presented":     {stream, anonymous, t.Context(), codes.Unauthenticated},
		"unlisted, nothing presented":   {unlisted, anonymous, t.Context(), codes.Unauthenticated},
		"unary, bad token":              {unary, anonymous, bearer("a.b.c"), codes.Unauthenticated},
		"stream, other audience":        {stream, anonymous, bearer(f.issuer.Token("a", "b", "vault")), codes.Unauthenticated},
		"unary, foreign identity":       {unary, workload, t.Context(), codes.PermissionDenied},
		"unlisted, authenticated":       {unlisted, workload, t.Context(), codes.PermissionDenied},
		"unary, foreign identity (JWT)": {unary, anonymous, bearer(f.issuer.Token("a", "b", "istio-ca")), codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, tc.call(tc.ctx, tc.client), tc.want) })
	}
	if n := f.decoded.Load(); n != 0 {
		t.Errorf("%d messages of refused callers were decoded", n)
	}
	if n := f.service.called.Load(); n != 0 {
		t.Errorf("handlers ran %d times", n)
	}
	var counted []string
	families, err := f.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "fairlead_rpc_server_calls_refused_total" && m.GetCounter().GetValue() > 0 {
				counted = append(counted, m.GetLabel()[0].GetValue())
			}
		}
	}
	if len(counted) != 2 {
		t.Errorf("refusals are counted under the codes %v", counted)
	}
	if log := f.log.String(); !strings.Contains(log, "gRPC call refused") || strings.Contains(log, "a.b.c") {
		t.Errorf("log should tell of refusals and not show tokens: %s", log)
	}
}

func TestHealthIsAnonymous(t *testing.T) {
	f := start(t, nil)
	r, err := healthpb.NewHealthClient(f.conn(t, f.ca.RootsOnly(), nil)).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("got %v %v", r, err)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	f := start(t, nil)
	stranger := testkit.PKI(t)
	m, err := stranger.NewSVID("istio-system", "client").Current()
	if err != nil {
		t.Fatal(err)
	}
	m, err = tlsconf.NewMaterial(m.CertPEM, m.KeyPEM, f.ca.RootPEM)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.dial(t, testkit.NewStatic(m), nil).UnaryCall(t.Context(), &testpb.SimpleRequest{})
	wantCode(t, err, codes.Unavailable)

	// Plaintext on the TLS port.
	conn, err := rpc.Dial(rpc.ClientConfig{Target: f.addr, Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), &testpb.SimpleRequest{})
	wantCode(t, err, codes.Unavailable)
	if n := f.service.called.Load(); n != 0 {
		t.Errorf("handlers ran %d times", n)
	}
}

func TestPanicsAreContained(t *testing.T) {
	f := start(t, nil)
	client := f.dial(t, f.ca.NewSVID("istio-system", "client"), nil)
	_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: panicSize})
	wantCode(t, err, codes.Internal)
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the caller is told %q", err)
	}
	s, err := client.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: make([]byte, panicSize)}})
	_, err = s.Recv()
	wantCode(t, err, codes.Internal)
	if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Errorf("after the panics: %v", err)
	}
	want := `
		# HELP fairlead_rpc_server_panics_total Panics in gRPC handlers that were turned into INTERNAL errors.
		# TYPE fairlead_rpc_server_panics_total counter
		fairlead_rpc_server_panics_total 2
	`
	if err := testutil.GatherAndCompare(f.reg, strings.NewReader(want), "fairlead_rpc_server_panics_total"); err != nil {
		t.Error(err)
	}
	if log := f.log.String(); !strings.Contains(log, `"msg":"gRPC handler panicked"`) || !strings.Contains(log, "UnaryCall") {
		t.Errorf("the log has no panic with a stack: %s", log)
	}
}

func TestPanickingAuthenticatorIsContained(t *testing.T) {
	f := start(t, func(c *rpc.ServerConfig) { c.Authenticator = panicking{} })
	_, err := f.dial(t, f.ca.NewSVID("istio-system", "client"), nil).UnaryCall(t.Context(), &testpb.SimpleRequest{})
	wantCode(t, err, codes.Internal)
}

type panicking struct{}

func (panicking) Authenticate(context.Context) (auth.Peer, error) { panic("authenticator bug") }

func TestLimits(t *testing.T) {
	f := start(t, func(c *rpc.ServerConfig) { c.MaxRecvBytes, c.MaxHeaderBytes = 1000, 8<<10 })
	client := f.dial(t, f.ca.NewSVID("istio-system", "client"), nil)
	_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 2000)}})
	wantCode(t, err, codes.ResourceExhausted)
	big := metadata.AppendToOutgoingContext(t.Context(), "x-big", strings.Repeat("x", 16<<10))
	if _, err = client.UnaryCall(big, &testpb.SimpleRequest{}); err == nil {
		t.Error("16 KiB of headers are taken")
	}
	if n := f.service.called.Load(); n != 0 {
		t.Errorf("handlers ran %d times", n)
	}
	if _, err = client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Errorf("ordinary call: %v", err)
	}
}

func TestConnectionLimit(t *testing.T) {
	f := start(t, func(c *rpc.ServerConfig) { c.MaxConnections = 1 })
	src := f.ca.NewSVID("istio-system", "client")
	first := f.conn(t, src, nil)
	if _, err := testpb.NewTestServiceClient(first).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	second := f.dial(t, src, nil)
	_, err := second.UnaryCall(t.Context(), &testpb.SimpleRequest{})
	wantCode(t, err, codes.Unavailable)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		_, err := second.UnaryCall(t.Context(), &testpb.SimpleRequest{})
		return err
	})
}

// A connection is closed after many refused calls, so that their cost is bounded.
func TestRefusalsCloseTheConnection(t *testing.T) {
	f := start(t, nil)
	client := f.dial(t, f.ca.RootsOnly(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for range 150 {
		if _, err := client.UnaryCall(ctx, &testpb.SimpleRequest{}); err == nil {
			t.Fatal("anonymous call went through")
		}
	}
	if n := f.rejected(t, "refusals"); n != 1 {
		t.Errorf("%d connections were closed for refusals, want 1", n)
	}
}

// grpc-go does not stop the deadline timer of a call that a tap refuses; the timer must end with the connection.
func TestRefusedCallsEndWithTheConnection(t *testing.T) {
	seen := make(chan context.Context, 1)
	f := start(t, func(c *rpc.ServerConfig) { c.Authenticator = refusing{seen} })
	conn := f.conn(t, f.ca.RootsOnly(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	_, err := testpb.NewTestServiceClient(conn).UnaryCall(ctx, &testpb.SimpleRequest{})
	wantCode(t, err, codes.Unauthenticated)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-(<-seen).Done():
	case <-time.After(testkit.Patience):
		t.Error("the call's context lives on after its connection")
	}
}

type refusing struct{ seen chan<- context.Context }

func (r refusing) Authenticate(ctx context.Context) (auth.Peer, error) {
	r.seen <- ctx
	return auth.Peer{}, auth.ErrNoCredentials
}

func TestGarbageBeforeAuthentication(t *testing.T) {
	f := start(t, nil)
	for _, bytes := range []string{
		"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"\x16\x03\x01\xff\xff", strings.Repeat("\x00", 4096), strings.Repeat("\xff", 4096), "",
	} {
		conn, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(bytes))
		_ = conn.Close()
	}
	// HTTP/2 garbage inside a proper TLS session.
	cfg := tlsconf.Client(f.ca.RootsOnly(), f.ca.ID("istio-system", "server"))
	cfg.NextProtos = []string{"h2"}
	for _, bytes := range []string{
		"GET / HTTP/1.1\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\xff", 1<<16),
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x05\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff\xff",
	} {
		conn, err := tls.Dial("tcp", f.addr, cfg)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(bytes))
		_ = conn.Close()
	}
	if _, err := f.dial(t, f.ca.NewSVID("istio-system", "client"), nil).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Errorf("after garbage: %v", err)
	}
}

func TestServerConfigIsChecked(t *testing.T) {
	good := func() rpc.ServerConfig {
		return rpc.ServerConfig{Service: "s", Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(), Insecure: true}
	}
	if _, err := rpc.NewServer(good()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*rpc.ServerConfig){
		"are required":            func(c *rpc.ServerConfig) { c.Log = nil },
		"Insecure is not set":     func(c *rpc.ServerConfig) { c.Insecure = false },
		"choose one":              func(c *rpc.ServerConfig) { c.TLS = &tls.Config{} },
		"needs an authenticator":  func(c *rpc.ServerConfig) { c.Policy = auth.Policy{"/a/b": auth.AnyIdentity()} },
		"must be /pkg.Service/Me": func(c *rpc.ServerConfig) { c.Policy = auth.Policy{"a": auth.Anonymous()} },
	} {
		cfg := good()
		change(&cfg)
		if _, err := rpc.NewServer(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
