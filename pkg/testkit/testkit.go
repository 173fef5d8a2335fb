// Package testkit is what Fairlead's tests share: a clock that stands still, a CA, in-memory and loopback listeners, waiting
// without sleeping, golden files.
package testkit

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
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

// Patience is how long to wait for what must happen: long enough for a machine that has much else to do, for a defect is what never happens.
const Patience = time.Minute

// Eventually tries f until it gives nil, and fails the test with f's last error when within has passed. Unless within is what the test is about
// it is Patience.
func Eventually(t testing.TB, within time.Duration, f func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); ; {
		late := time.Now().After(deadline) // asked before f: however long this test was held up, f has the last word
		err := f()
		if err == nil {
			return
		}
		if late {
			t.Fatalf("not within %s: %v", within, err)
		}
		<-tick.C
	}
}

// Quick asserts that f takes no longer than limit on a machine that has nothing else to do: one of ten attempts must show it, since what else the
// machine does only ever adds. f returns what it took, so that preparations do not count.
func Quick(t testing.TB, limit time.Duration, f func() time.Duration) {
	t.Helper()
	var took []time.Duration
	for range 10 {
		d := f()
		if d <= limit {
			return
		}
		took = append(took, d)
	}
	t.Errorf("took %s in turn, want %s or less", took, limit)
}

// Bufconn is an in-memory listener and the option that makes a client connect to it. Use it with target "passthrough:///test".
func Bufconn(t testing.TB) (net.Listener, grpc.DialOption) {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	t.Cleanup(func() { _ = lis.Close() })
	return lis, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) })
}

// ownPorts counts what FreeAddress has given away.
var ownPorts atomic.Uint32

// FreeAddress is an address of loopback at which nobody listens, and nobody but the test will: a port of 127.0.0.1 that was free a moment ago may be
// anybody's by now, while this IP address is the process's own.
func FreeAddress(t testing.TB) netip.AddrPort {
	t.Helper()
	pid := os.Getpid()
	ip := netip.AddrFrom4([4]byte{127, 128 + byte(pid>>16&63), byte(pid >> 8), byte(pid)})
	for {
		address := netip.AddrPortFrom(ip, 20000+uint16(ownPorts.Add(1)%40000)) //nolint:gosec // a port
		lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address.String())
		if errors.Is(err, syscall.EADDRINUSE) { // by somebody who listens on all addresses
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = lis.Close() // nobody has connected
		return address
	}
}

// Twin is the same port of another IP address that is the process's own.
func Twin(address netip.AddrPort) netip.AddrPort {
	ip := address.Addr().As4()
	ip[1] ^= 64
	return netip.AddrPortFrom(netip.AddrFrom4(ip), address.Port())
}

// Listen listens at an address until the test ends.
func Listen(t testing.TB, address netip.AddrPort) net.Listener {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	return lis
}

// LoopbackListener listens on a free port of 127.0.0.1 until the test ends.
func LoopbackListener(t testing.TB) net.Listener {
	t.Helper()
	return Listen(t, netip.MustParseAddrPort("127.0.0.1:0"))
}

// Spans records finished spans of the returned provider.
func Spans(t testing.TB) (*tracetest.SpanRecorder, *sdktrace.TracerProvider) {
	t.Helper()
	rec := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
	t.Cleanup(func() { _ = tp.Shutdown(context.Background()) })
	return rec, tp
}
