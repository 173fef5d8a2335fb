package rpc_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

func (f *fixture) stream(t *testing.T, client testpb.TestServiceClient) testpb.TestService_FullDuplexCallClient {
	t.Helper()
	s, err := client.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := echoed(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// echoed sends a message on a stream and receives its echo.
func echoed(s testpb.TestService_FullDuplexCallClient) error {
	if err := s.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
		return err
	}
	_, err := s.Recv()
	return err
}

// drip returns a byte at a time.
type drip struct{ io.Reader }

func (d drip) Read(p []byte) (int, error) {
	<-time.After(10 * time.Millisecond)
	return d.Reader.Read(p[:1])
}

func TestSlowMessageIsCutOff(t *testing.T) {
	f := start(t, func(c *rpc.ServerConfig) { c.MessageTimeout = 300 * time.Millisecond })
	// A client that sends its messages whole is not closed, however long the pause between them.
	silent := f.stream(t, f.dial(t, f.ca.NewSVID("istio-system", "client"), nil))
	cfg := tlsconf.Client(f.ca.NewSVID("istio-system", "client"), f.ca.ID("istio-system", "server"))
	cfg.NextProtos = []string{"h2"}
	transport := &http2.Transport{TLSClientConfig: cfg}
	defer transport.CloseIdleConnections()
	body := io.MultiReader(bytes.NewReader([]byte{0, 0, 0, 4, 0}), zeros{}) // a message of 1 KiB
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+f.addr+testService+"UnaryCall", drip{body})
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/grpc")
	if resp, err := transport.RoundTrip(r); err == nil {
		_ = resp.Body.Close()
		t.Errorf("answered with %s", resp.Status)
	}
	if n := f.rejected(t, "message"); n != 1 {
		t.Errorf("%d connections were closed for an unfinished message, want 1", n)
	}
	if err := echoed(silent); err != nil {
		t.Errorf("a stream that has sent nothing for longer than a message may take: %v", err)
	}
}

func TestExpiredCertificateOnAnOpenConnection(t *testing.T) {
	clock := testkit.NewClock(time.Now())
	f := start(t, func(c *rpc.ServerConfig) { c.Authenticator = auth.MTLSAt(clock) })
	client := f.dial(t, f.ca.NewSVID("istio-system", "client"), nil)
	if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	clock.Advance(2 * time.Hour)
	_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
	wantCode(t, err, codes.Unauthenticated)
}

func TestStreamsEndWithTheCertificate(t *testing.T) {
	f := start(t, nil)
	short := f.ca.NewSVID("istio-system", "client", testkit.Valid(time.Now().Add(-time.Minute), time.Now().Add(2*time.Second)))
	s := f.stream(t, f.dial(t, short, nil))
	if _, err := s.Recv(); err == nil {
		t.Error("a message that was not asked for")
	}
	if n := f.rejected(t, "expired"); n != 1 {
		t.Errorf("%d connections were closed for an expired certificate, want 1", n)
	}
}

func TestConnectionsHaveAnAge(t *testing.T) {
	f := start(t, func(c *rpc.ServerConfig) {
		c.MaxConnectionAge, c.MaxConnectionAgeGrace = 200*time.Millisecond, 200*time.Millisecond
	})
	client := f.dial(t, f.ca.NewSVID("istio-system", "client"), nil)
	if _, err := f.stream(t, client).Recv(); err == nil {
		t.Error("a message that was not asked for")
	}
	if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Errorf("on a new connection: %v", err)
	}
}

func TestLimitsOfAnIdentity(t *testing.T) {
	f := start(t, func(c *rpc.ServerConfig) { c.MaxConnectionsPerIdentity, c.MaxCallsPerIdentity = 2, 3 })
	src := f.ca.NewSVID("bookinfo", "reviews")
	first := f.dial(t, src, nil)
	for range 2 {
		f.stream(t, first)
	}
	second := f.dial(t, src, nil)
	last := f.stream(t, second)
	over, err := second.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = over.Recv()
	wantCode(t, err, codes.ResourceExhausted)

	_, err = f.dial(t, src, nil).UnaryCall(t.Context(), &testpb.SimpleRequest{})
	wantCode(t, err, codes.Unavailable)
	// The server may count the connection after the client has seen it closed.
	testkit.Eventually(t, testkit.Patience, func() error {
		if f.rejected(t, "identity") < 1 {
			return errors.New("no connection was refused for its identity")
		}
		return nil
	})
	if _, err := f.dial(t, f.ca.NewSVID("istio-system", "client"), nil).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Errorf("another identity: %v", err)
	}
	if err := last.CloseSend(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		s, err := second.FullDuplexCall(t.Context())
		if err != nil {
			return err
		}
		if err := s.CloseSend(); err != nil {
			return err
		}
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	})
}

// The limits also hold for identities that are proven by a token, with the first call.
func TestLimitsOfAnIdentityByToken(t *testing.T) {
	f := start(t, func(c *rpc.ServerConfig) {
		c.MaxConnectionsPerIdentity, c.UnauthenticatedTimeout = 1, 500*time.Millisecond
	})
	token := f.issuer.TokenFile("istio-system", "client", "istio-ca")
	dial := func() testpb.TestServiceClient {
		return f.dial(t, f.ca.RootsOnly(), func(c *rpc.ClientConfig) { c.TokenFile = token })
	}
	s := f.stream(t, dial())
	if _, err := dial().UnaryCall(t.Context(), &testpb.SimpleRequest{}); err == nil {
		t.Error("a second connection is taken")
	}
	if n := f.rejected(t, "identity"); n < 1 {
		t.Error("no connection was refused for its identity")
	}
	// The connection of an authenticated caller is not closed for being unauthenticated.
	f.conn(t, f.ca.RootsOnly(), nil).Connect()
	testkit.Eventually(t, testkit.Patience, func() error {
		if f.rejected(t, "unauthenticated") == 0 {
			return errors.New("no unauthenticated connection has been closed yet")
		}
		return nil
	})
	if err := s.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Error(err)
	}
}

// An unauthenticated connection may have few calls at once: a health watch lasts as long as the connection.
func TestCallsWithoutAuthentication(t *testing.T) {
	f := start(t, nil)
	client := healthpb.NewHealthClient(f.conn(t, f.ca.RootsOnly(), nil))
	for range 8 {
		s, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	s, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Recv()
	wantCode(t, err, codes.ResourceExhausted)
}

// A stream may send any number of messages as long as the handler takes them.
func TestLongStreamsGiveBackWhatTheyTook(t *testing.T) {
	f := start(t, func(c *rpc.ServerConfig) { c.MaxRecvBytes = 64 << 10 })
	s, err := f.dial(t, f.ca.NewSVID("istio-system", "client"), nil).FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 400 {
		if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: make([]byte, 60<<10)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
}
