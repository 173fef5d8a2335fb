package certificate

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// ca answers with err, or with a chain; hold delays its answers until it is closed.
type ca struct {
	err  error
	hold chan struct{}
	got  chan *cav1.ForwardCertificateRequestRequest
	// within is the deadline of the last request.
	within time.Duration
}

func (c *ca) ForwardCertificateRequest(
	ctx context.Context, req *cav1.ForwardCertificateRequestRequest, _ ...grpc.CallOption,
) (*cav1.ForwardCertificateRequestResponse, error) {
	if deadline, ok := ctx.Deadline(); ok {
		c.within = time.Until(deadline)
	}
	if c.hold != nil {
		c.got <- req
		<-c.hold
		return &cav1.ForwardCertificateRequestResponse{}, nil
	}
	c.got <- req
	if c.err != nil {
		return nil, c.err
	}
	return &cav1.ForwardCertificateRequestResponse{CertificateChain: []string{"leaf", "root"}}, nil
}

func forwarder(t *testing.T, c *ca, change func(*Config)) *Forwarder {
	t.Helper()
	if c.got == nil {
		c.got = make(chan *cav1.ForwardCertificateRequestRequest, 100)
	}
	cfg := Config{CA: c, Banned: func(auth.Peer) error { return nil }, Log: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry()}
	if change != nil {
		change(&cfg)
	}
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// call is the context of a call by a service account with these authorization headers.
func call(t *testing.T, account, method string, headers ...string) context.Context {
	t.Helper()
	ctx := auth.NewContext(t.Context(), auth.Peer{ID: spiffeid.RequireFromString("spiffe://cluster.local/ns/default/sa/" + account),
		Method: method})
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 4567}})
	return metadata.NewIncomingContext(ctx, metadata.MD{"authorization": headers})
}

func TestForwardsTheCallersTokenAndIdentity(t *testing.T) {
	c := &ca{}
	f := forwarder(t, c, nil)
	for _, method := range []string{auth.MethodJWT, auth.MethodMTLS} {
		res, err := f.CreateCertificate(call(t, "web", method, "Bearer a.b.c"),
			&security.IstioCertificateRequest{Csr: "csr", ValidityDuration: 60})
		if err != nil || strings.Join(res.GetCertChain(), " ") != "leaf root" {
			t.Fatalf("%s: %v, %v", method, res, err)
		}
		want := &cav1.ForwardCertificateRequestRequest{
			Token: "a.b.c", Identity: "spiffe://cluster.local/ns/default/sa/web", Csr: "csr", ValidityDuration: 60, Address: "10.1.2.3:4567",
		}
		if got := <-c.got; !proto.Equal(got, want) {
			t.Errorf("%s: forwarded %v, want %v", method, got, want)
		}
		if c.within <= 0 || c.within > timeout {
			t.Errorf("the ca has %s to answer", c.within)
		}
	}
	if n := testutil.ToFloat64(f.requests.WithLabelValues("OK")); n != 2 {
		t.Errorf("%v requests counted", n)
	}
}

// TestNothingIsForwardedWithoutProof: requests that the ca could not verify, or would not read, are not forwarded.
func TestNothingIsForwardedWithoutProof(t *testing.T) {
	impersonating, err := structpb.NewStruct(map[string]any{impersonation: "spiffe://cluster.local/ns/default/sa/other"})
	if err != nil {
		t.Fatal(err)
	}
	banned := func(c *Config) {
		c.Banned = func(auth.Peer) error { return status.Error(codes.PermissionDenied, "banned") }
	}
	for name, tc := range map[string]struct {
		headers []string
		req     *security.IstioCertificateRequest
		change  func(*Config)
		want    codes.Code
		says    string
	}{
		"a certificate alone":   {nil, nil, nil, codes.Unauthenticated, "CA_ADDR"},
		"another kind of proof": {[]string{"Basic abc"}, nil, nil, codes.Unauthenticated, "not one bearer token"},
		"an empty token":        {[]string{"Bearer "}, nil, nil, codes.Unauthenticated, "not one bearer token"},
		"two tokens":            {[]string{"Bearer a.b.c", "Bearer d.e.f"}, nil, nil, codes.Unauthenticated, "not one bearer token"},
		"a token that is long": {[]string{"Bearer " + strings.Repeat("x", maxTokenBytes+1)}, nil, nil, codes.Unauthenticated,
			"not one bearer token"},
		"a request that is large": {[]string{"Bearer a.b.c"}, &security.IstioCertificateRequest{Csr: strings.Repeat("x", maxRequestBytes)}, nil,
			codes.InvalidArgument, "at most"},
		"another's identity": {[]string{"Bearer a.b.c"}, &security.IstioCertificateRequest{Metadata: impersonating}, nil,
			codes.PermissionDenied, "not forwarded"},
		"who is banned": {[]string{"Bearer a.b.c"}, nil, banned, codes.PermissionDenied, "banned"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &ca{}
			f := forwarder(t, c, tc.change)
			_, err := f.CreateCertificate(call(t, "web", auth.MethodMTLS, tc.headers...), tc.req)
			if status.Code(err) != tc.want || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %v with %q", err, tc.want, tc.says)
			}
			if len(c.got) > 0 {
				t.Errorf("forwarded: %v", <-c.got)
			}
		})
	}
	if _, err := forwarder(t, &ca{}, nil).CreateCertificate(t.Context(), nil); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a caller that nobody has authenticated: %v", err)
	}
}

// TestAnswersOfTheCA: an answer about the request is passed on whole; an error about this xds-server is not reported as
// the caller's.
func TestAnswersOfTheCA(t *testing.T) {
	about := func(code codes.Code, more ...protoadapt.MessageV1) error {
		st, err := status.New(code, "why").WithDetails(append(more, &errdetails.ErrorInfo{Reason: "overload", Domain: "ca.fairlead.dev"})...)
		if err != nil {
			t.Fatal(err)
		}
		return st.Err()
	}
	retry := &errdetails.RetryInfo{RetryDelay: durationpb.New(3 * time.Second)}
	for name, tc := range map[string]struct {
		err  error
		want codes.Code
	}{
		"overloaded":                  {about(codes.ResourceExhausted, retry), codes.ResourceExhausted},
		"token refused":               {about(codes.Unauthenticated), codes.Unauthenticated},
		"ca away":                     {status.Error(codes.Unavailable, "connection refused"), codes.Unavailable},
		"own certificate refused":     {status.Error(codes.Unauthenticated, "certificate"), codes.Unavailable},
		"may not forward":             {status.Error(codes.PermissionDenied, "method is not allowed for this identity"), codes.Unavailable},
		"a ca that does not know how": {status.Error(codes.Unimplemented, "unknown service"), codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := forwarder(t, &ca{err: tc.err}, nil).CreateCertificate(call(t, "web", auth.MethodJWT, "Bearer a.b.c"), nil)
			if status.Code(err) != tc.want {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if tc.want == codes.ResourceExhausted && !proto.Equal(status.Convert(err).Details()[0].(proto.Message), retry) {
				t.Errorf("details %v, want those of the ca", status.Convert(err).Details())
			}
		})
	}
}

// receive waits for a value.
func receive[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(testkit.Patience):
		t.Fatal("nothing came")
	}
	return v
}

// TestRequestsAreBounded: the requests of one identity leave room for others, and a caller beyond the limits is told
// when to retry.
func TestRequestsAreBounded(t *testing.T) {
	c := &ca{hold: make(chan struct{}), got: make(chan *cav1.ForwardCertificateRequestRequest, 10)}
	f := forwarder(t, c, func(cfg *Config) { cfg.MaxRequests, cfg.MaxIdentityRequests = 3, 2 })
	ask := func(account string) error {
		_, err := f.CreateCertificate(call(t, account, auth.MethodJWT, "Bearer a.b.c"), nil)
		return err
	}
	done := make(chan error, 3)
	for _, account := range []string{"web", "web", "db"} {
		go func() { done <- ask(account) }()
		receive(t, c.got)
	}
	for account, says := range map[string]string{"web": "2 certificate requests of spiffe://cluster.local/ns/default/sa/web",
		"db": "3 certificate requests"} {
		err := ask(account)
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", account, err, says)
		}
		info, ok := status.Convert(err).Details()[0].(*errdetails.RetryInfo)
		if !ok || info.GetRetryDelay().AsDuration() < retryAfter || info.GetRetryDelay().AsDuration() > 2*retryAfter {
			t.Errorf("%s: told to come back after %v", account, info)
		}
	}
	close(c.hold)
	for range 3 {
		if err := receive(t, done); err != nil {
			t.Error(err)
		}
	}
	if f.total != 0 || len(f.underWay) != 0 {
		t.Errorf("%d requests and %v are still counted", f.total, f.underWay)
	}
}
