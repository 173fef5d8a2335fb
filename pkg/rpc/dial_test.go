package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
)

// named is a server that answers with its name.
type named struct {
	testpb.UnimplementedTestServiceServer
	name string
}

func (n named) UnaryCall(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Username: n.name}, nil
}

func plain(t *testing.T, name string, change func(*rpc.ServerConfig)) *grpc.Server {
	t.Helper()
	cfg := rpc.ServerConfig{
		Service: name, Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(), Insecure: true,
		Policy: auth.Policy{testService + "*": auth.Anonymous()},
	}
	if change != nil {
		change(&cfg)
	}
	s, err := rpc.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	testpb.RegisterTestServiceServer(s, named{name: name})
	return s
}

func dialPlain(t *testing.T, cfg rpc.ClientConfig, opts ...grpc.DialOption) testpb.TestServiceClient {
	t.Helper()
	cfg.Insecure = true
	conn, err := rpc.Dial(cfg, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

func who(t *testing.T, c testpb.TestServiceClient) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	r, err := c.UnaryCall(ctx, &testpb.SimpleRequest{})
	return r.GetUsername(), err
}

func TestDialFailsOverWithinASecond(t *testing.T) {
	testkit.Quick(t, time.Second, func() time.Duration {
		a, b := plain(t, "a", nil), plain(t, "b", nil)
		lisA, lisB := testkit.LoopbackListener(t), testkit.LoopbackListener(t)
		go func() { _ = a.Serve(lisA) }()
		go func() { _ = b.Serve(lisB) }()
		t.Cleanup(a.Stop)
		t.Cleanup(b.Stop)
		c := dialPlain(t, rpc.ClientConfig{Target: lisA.Addr().String() + "," + lisB.Addr().String(), KeepOrder: true})
		if name, err := who(t, c); err != nil || name != "a" {
			t.Fatalf("first of the list should answer: %q %v", name, err)
		}
		a.Stop()
		began := time.Now()
		testkit.Eventually(t, testkit.Patience, func() error {
			name, err := who(t, c)
			if err == nil && name != "b" {
				return fmt.Errorf("answered by %q", name)
			}
			return err
		})
		return time.Since(began)
	})
}

// A server that accepts connections and sends nothing does not delay the client's use of the others.
func TestDialPassesByASilentServer(t *testing.T) {
	testkit.Quick(t, time.Second, func() time.Duration {
		silent := testkit.LoopbackListener(t)
		b := plain(t, "b", nil)
		lis := testkit.LoopbackListener(t)
		go func() { _ = b.Serve(lis) }()
		t.Cleanup(b.Stop)
		c := dialPlain(t, rpc.ClientConfig{Target: silent.Addr().String() + ", " + lis.Addr().String(), KeepOrder: true})
		began := time.Now()
		if name, err := who(t, c); err != nil || name != "b" {
			t.Fatalf("got %q %v", name, err)
		}
		return time.Since(began)
	})
}

func TestDialComesBack(t *testing.T) {
	addr := testkit.FreeAddress(t)
	c := dialPlain(t, rpc.ClientConfig{Target: addr.String()})
	_, err := who(t, c)
	wantCode(t, err, codes.Unavailable)

	again := testkit.Listen(t, addr)
	s := plain(t, "late", nil)
	go func() { _ = s.Serve(again) }()
	t.Cleanup(s.Stop)
	testkit.Eventually(t, testkit.Patience, func() error {
		_, err := who(t, c)
		return err
	})
}

func TestDialSpreadsClients(t *testing.T) {
	var list []string
	for _, name := range []string{"a", "b"} {
		s, lis := plain(t, name, nil), testkit.LoopbackListener(t)
		go func() { _ = s.Serve(lis) }()
		t.Cleanup(s.Stop)
		list = append(list, lis.Addr().String())
	}
	seen := map[string]bool{}
	for i := 0; len(seen) < 2; i++ {
		if i == 100 { // 2^-99 by chance
			t.Fatalf("100 clients all chose %v", seen)
		}
		name, err := who(t, dialPlain(t, rpc.ClientConfig{Target: strings.Join(list, ",")}))
		if err != nil {
			t.Fatal(err)
		}
		seen[name] = true
	}
}

func TestDialBufconnAndMetrics(t *testing.T) {
	lis, option := testkit.Bufconn(t)
	s := plain(t, "mem", nil)
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	reg := prometheus.NewRegistry()
	rec, tp := testkit.Spans(t)
	for range 2 { // two clients share a registry
		c := dialPlain(t, rpc.ClientConfig{Target: "passthrough:///mem", Registerer: reg, TracerProvider: tp}, option)
		if name, err := who(t, c); err != nil || name != "mem" {
			t.Fatalf("got %q %v", name, err)
		}
	}
	if n, err := testutil.GatherAndCount(reg, "grpc_client_handled_total"); err != nil || n != 1 {
		t.Errorf("%d series of the client metric, %v", n, err)
	}
	if spans := rec.Ended(); len(spans) != 2 || spans[0].Name() != "grpc.testing.TestService/UnaryCall" {
		t.Errorf("spans: %v", spans)
	}
}

func TestUnixSocketAdmitsOneUser(t *testing.T) {
	me := uint32(os.Getuid())
	for name, tc := range map[string]struct {
		uids []uint32
		want codes.Code
	}{
		"own user":     {[]uint32{me}, codes.OK},
		"another user": {[]uint32{me + 1}, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			lis, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			serve(t, plain(t, "unix", func(c *rpc.ServerConfig) { c.PeerUIDs = tc.uids }), lis)
			_, err = who(t, dialPlain(t, rpc.ClientConfig{Target: "unix://" + path}))
			wantCode(t, err, tc.want)
		})
	}
	t.Run("not a unix socket", func(t *testing.T) {
		lis := testkit.LoopbackListener(t)
		serve(t, plain(t, "tcp", func(c *rpc.ServerConfig) { c.PeerUIDs = []uint32{me} }), lis)
		_, err := who(t, dialPlain(t, rpc.ClientConfig{Target: lis.Addr().String()}))
		wantCode(t, err, codes.Unavailable)
	})
}

func TestDialConfigIsChecked(t *testing.T) {
	for want, cfg := range map[string]rpc.ClientConfig{
		"target is required":  {Insecure: true},
		"Insecure is not set": {Target: "a:1"},
		"needs TLS":           {Target: "a:1", Insecure: true, TokenFile: "t"},
		"must be host:port":   {Target: "a:1,b", Insecure: true},
		`address ""`:          {Target: "a:1,", Insecure: true},
	} {
		if _, err := rpc.Dial(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestServeStops(t *testing.T) {
	s := plain(t, "s", nil)
	lis := testkit.LoopbackListener(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	// Without a running call, Serve must return at once, not after the grace period of an hour.
	go func() { done <- rpc.Serve(ctx, s, lis, time.Hour) }()
	if _, err := who(t, dialPlain(t, rpc.ClientConfig{Target: lis.Addr().String()})); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}

	broken := testkit.LoopbackListener(t)
	_ = broken.Close()
	if err := rpc.Serve(t.Context(), plain(t, "s", nil), broken, 0); err == nil || !strings.Contains(err.Error(), broken.Addr().String()) {
		t.Errorf("a dead listener gives %v", err)
	}
}

func TestServeCutsWhatOutlivesTheGrace(t *testing.T) {
	f := &service{}
	s, err := rpc.NewServer(rpc.ServerConfig{
		Service: "s", Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(), Insecure: true,
		Policy: auth.Policy{testService + "*": auth.Anonymous()},
	})
	if err != nil {
		t.Fatal(err)
	}
	testpb.RegisterTestServiceServer(s, f)
	lis := testkit.LoopbackListener(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- rpc.Serve(ctx, s, lis, 50*time.Millisecond) }()
	stream, err := dialPlain(t, rpc.ClientConfig{Target: lis.Addr().String()}).FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("the stream lives on")
	} else {
		wantCode(t, err, codes.Unavailable)
	}
}

func FuzzDialTarget(f *testing.F) {
	f.Add("a:1,b:2")
	f.Add("unix:///x")
	f.Add("dns:///name:1")
	f.Fuzz(func(t *testing.T, target string) {
		conn, err := rpc.Dial(rpc.ClientConfig{Target: target, Insecure: true})
		if err == nil {
			_ = conn.Close()
		}
		if err != nil && !strings.Contains(err.Error(), "gRPC client") {
			t.Errorf("error does not say where it is from: %v", errors.Unwrap(err))
		}
	})
}
