// Package testkit is what Fairlead's tests share: a clock that stands still, a CA, in-memory and loopback listeners, waiting
// without sleeping, golden files.
package testkit

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// Logger writes to the test's log, down to Debug.
func Logger(t testing.TB) *slog.Logger {
	t.Helper()
	w := &testWriter{t: t, done: make(chan struct{})}
	t.Cleanup(func() { close(w.done) })
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testWriter struct {
	t    testing.TB
	done chan struct{}
}

// Write drops what arrives after the test: goroutines that stop late must not make it panic.
func (w *testWriter) Write(p []byte) (int, error) {
	select {
	case <-w.done:
	default:
		w.t.Log(strings.TrimSuffix(string(p), "\n"))
	}
	return len(p), nil
}

// Eventually tries f until it gives nil, and fails the test with f's last error when within has passed.
func Eventually(t testing.TB, within time.Duration, f func() error) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("not within %s: %v", within, err)
		case <-tick.C:
		}
	}
}

// Bufconn is an in-memory listener and the option that makes a client connect to it. Use it with target "passthrough:///test".
func Bufconn(t testing.TB) (net.Listener, grpc.DialOption) {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	t.Cleanup(func() { _ = lis.Close() })
	return lis, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) })
}

// LoopbackListener listens on a free port of 127.0.0.1 until the test ends.
func LoopbackListener(t testing.TB) net.Listener {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	return lis
}

// Spans records finished spans of the returned provider.
func Spans(t testing.TB) (*tracetest.SpanRecorder, *sdktrace.TracerProvider) {
	t.Helper()
	rec := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
	t.Cleanup(func() { _ = tp.Shutdown(context.Background()) })
	return rec, tp
}
