// Package testkit holds what tests of all modules share: Clock, which stands still, CA and Issuer for certificates and
// tokens, listeners on loopback and in memory, Eventually, and Golden.
package testkit

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// Logger returns a logger that writes to the test's log, down to Debug.
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

// Write drops lines after the test's end, which would make it panic.
func (w *testWriter) Write(p []byte) (int, error) {
	select {
	case <-w.done:
	default:
		w.t.Log(strings.TrimSuffix(string(p), "\n"))
	}
	return len(p), nil
}

// Must returns what a call has returned, and fails the test if that is an error: x := testkit.Must(f())(t).
func Must[T any](value T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		NoError(t, err)
		return value
	}
}

// NoError fails the test, which goes no further, if err is not nil.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Patience bounds waits for what must happen; it is long enough for a busy machine.
const Patience = time.Minute

// Eventually calls f until it returns nil, and fails the test with f's last error after within, which is Patience
// unless the test is about a time.
func Eventually(t testing.TB, within time.Duration, f func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); ; {
		// Before f, so that f is called once more even if this test was held up past the deadline.
		late := time.Now().After(deadline)
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

// Quick asserts that f takes no longer than limit on an idle machine: one of ten attempts must be that fast, because
// other work on the machine only adds time. f returns the time that counts.
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

// CPUTime returns the CPU time that f takes in the calling goroutine, which other work on the machine does not change.
func CPUTime(t testing.TB, f func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	f()
	return used() - before
}

// Bufconn returns an in-memory listener and the dial option for it. The target is "passthrough:///test".
func Bufconn(t testing.TB) (net.Listener, grpc.DialOption) {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	t.Cleanup(func() { _ = lis.Close() })
	return lis, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) })
}

// ServeInMemory serves, without authentication, what register adds, and returns a connection to it. Both end with the
// test.
func ServeInMemory(t testing.TB, register func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	lis, dialer := Bufconn(t)
	server := grpc.NewServer()
	register(server)
	go func() { _ = server.Serve(lis) }() // ends with Stop
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///test", dialer, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	return conn
}

// ownPorts counts the ports that FreeAddress has returned.
var ownPorts atomic.Uint32

// FreeAddress returns an address of loopback that no other process uses. A free port of 127.0.0.1 could be taken before
// the test listens on it, so the address has an IP that belongs to this process alone.
func FreeAddress(t testing.TB) netip.AddrPort {
	t.Helper()
	pid := os.Getpid()
	ip := netip.AddrFrom4([4]byte{127, 128 + byte(pid>>16&63), byte(pid >> 8), byte(pid)})
	for {
		address := netip.AddrPortFrom(ip, 20000+uint16(ownPorts.Add(1)%40000)) //nolint:gosec // a port
		lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address.String())
		if errors.Is(err, syscall.EADDRINUSE) { // by a process that listens on all addresses
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = lis.Close() // nobody has connected
		return address
	}
}

// Twin returns the same port of another IP address that belongs to this process alone.
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

// Spans returns a provider and the recorder of its finished spans.
func Spans(t testing.TB) (*tracetest.SpanRecorder, *sdktrace.TracerProvider) {
	t.Helper()
	rec := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
	t.Cleanup(func() { _ = tp.Shutdown(context.Background()) })
	return rec, tp
}
