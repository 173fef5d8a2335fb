package rpc_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // for compressed messages
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

const (
	healthCheck = "/grpc.health.v1.Health/Check"
	longMessage = 15 << 20
	attackers   = 60
)

// attack sends a long, unfinished message to a method on each of some connections, until the test ends.
func (f *fixture) attack(t *testing.T, src tlsconf.Source, method string) int64 {
	t.Helper()
	return testkit.Unfinished{
		TLS: tlsconf.Client(src, f.ca.ID("istio-system", "server")), URL: "https://" + f.addr + method, Connections: attackers, Size: longMessage,
	}.Run(t)
}

func heap() int64 {
	var m runtime.MemStats
	for range 2 { // sync.Pools are empty after the second
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func attacked(c *rpc.ServerConfig) { c.MaxRecvBytes = 16 << 20 }

// Sixty unfinished messages of 15 MiB cost a server what its limits say, not the 900 MiB that they declare.
func TestUnfinishedMessagesWithoutAuthentication(t *testing.T) {
	f := start(t, attacked)
	other := f.dial(t, f.ca.NewSVID("istio-system", "client"), nil)
	before := heap()
	sent := f.attack(t, f.ca.RootsOnly(), healthCheck)
	if grown := heap() - before; grown > 32<<20 {
		t.Errorf("the heap grew by %d MiB while %d MiB were sent", grown>>20, sent>>20)
	}
	testkit.Quick(t, 2*time.Second, func() time.Duration {
		began := time.Now()
		if _, err := other.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 1<<20)}}); err != nil {
			t.Errorf("another client: %v", err)
		}
		return time.Since(began)
	})
}

func TestUnfinishedMessagesOfOneIdentity(t *testing.T) {
	f := start(t, attacked)
	other := f.dial(t, f.ca.NewSVID("istio-system", "client"), nil)
	before := heap()
	sent := f.attack(t, f.ca.NewSVID("bookinfo", "reviews"), testService+"FullDuplexCall")
	// Twice the longest message, what the connections may hold without a reservation, and the test's own memory.
	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("the heap grew by %d MiB while %d MiB were sent", grown>>20, sent>>20)
	}
	testkit.Quick(t, 2*time.Second, func() time.Duration {
		began := time.Now()
		if _, err := other.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 10<<20)}}); err != nil {
			t.Errorf("another identity: %v", err)
		}
		return time.Since(began)
	})
}

// A message of 4 MiB, compressed to 4 KiB, is refused at the limit before it is expanded further.
func TestCompressedMessagesAreBounded(t *testing.T) {
	f := start(t, func(c *rpc.ServerConfig) { c.MaxRecvBytes = 1 << 20 })
	client := f.dial(t, f.ca.NewSVID("istio-system", "client"), nil)
	_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 4<<20)}},
		grpc.UseCompressor("gzip"))
	wantCode(t, err, codes.ResourceExhausted)
	if n := f.service.called.Load(); n != 0 {
		t.Errorf("handlers ran %d times", n)
	}

	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	if _, err := io.CopyN(z, zeros{}, 512<<20); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	message := append(binary.BigEndian.AppendUint32([]byte{1}, uint32(body.Len())), body.Bytes()...)
	cfg := tlsconf.Client(f.ca.NewSVID("istio-system", "client"), f.ca.ID("istio-system", "server"))
	cfg.NextProtos = []string{"h2"}
	transport := &http2.Transport{TLSClientConfig: cfg}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+f.addr+testService+"UnaryCall", bytes.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Content-Type": "application/grpc", "TE": "trailers", "Grpc-Encoding": "gzip"} {
		r.Header.Set(k, v)
	}
	var was, is runtime.MemStats
	runtime.ReadMemStats(&was)
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	runtime.ReadMemStats(&is)
	if got := resp.Header.Get("Grpc-Status") + resp.Trailer.Get("Grpc-Status"); got != "8" {
		t.Errorf("status %q, want 8 (RESOURCE_EXHAUSTED)", got)
	}
	if allocated := is.TotalAlloc - was.TotalAlloc; allocated > 64<<20 {
		t.Errorf("%d MiB were allocated for 512 MiB of zeros", allocated>>20)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A client that sends endless headers loses its connection once they are longer than the server's limit.
func TestEndlessHeadersCloseTheConnection(t *testing.T) {
	f := start(t, nil)
	conn, framer := f.raw(t, f.ca.RootsOnly())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, conn)
	}()
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	if err := e.WriteField(hpack.HeaderField{Name: "x-junk", Value: strings.Repeat("x", 8<<10)}); err != nil {
		t.Fatal(err)
	}
	err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes()})
	const most = 64 << 20 // the kernel alone takes some MiB
	for sent := 0; err == nil; sent += block.Len() {
		if sent > most {
			t.Fatalf("%d bytes of headers are taken", sent)
		}
		err = framer.WriteContinuation(1, false, block.Bytes())
	}
	select {
	case <-ended:
	case <-time.After(testkit.Patience):
		t.Error("the connection stays open")
	}
}

// A server answers each header block that starts no call. A client that sends only these, and reads nothing, loses its
// connection.
func TestHeadersWithoutCallsCloseTheConnection(t *testing.T) {
	f := start(t, nil)
	conn, framer := f.raw(t, f.ca.RootsOnly())
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, h := range []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":path", Value: healthCheck},
		{Name: ":scheme", Value: "https"}} {
		if err := e.WriteField(h); err != nil {
			t.Fatal(err)
		}
	}
	for id := uint32(1); id < 2000; id += 2 {
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true,
			EndHeaders: true}); err != nil {
			break
		}
	}
	if _, err := io.Copy(io.Discard, conn); err == nil {
		t.Log("closed without a reset")
	}
	if n := f.rejected(t, "refusals"); n != 1 {
		t.Errorf("%d connections were closed for refusals, want 1", n)
	}
}

// raw opens a connection and sends the preface.
func (f *fixture) raw(t *testing.T, src tlsconf.Source) (*tls.Conn, *http2.Framer) {
	t.Helper()
	cfg := tlsconf.Client(src, f.ca.ID("istio-system", "server"))
	cfg.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", f.addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return conn, framer
}

// Messages that no handler takes count too. A client that reads no answers, and sends messages of five bytes in frames
// of their own until its window is full, would make a server hold thirty times that; the server stops reading at the
// budget of its identity.
func TestUnreadMessagesAreBounded(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *rpc.ServerConfig) { c.MaxRecvBytes = 64 << 10 })
	_, framer := f.raw(t, f.ca.NewSVID("bookinfo", "reviews"))
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, h := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":path", Value: testService + "FullDuplexCall"}, {Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: "x"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	} {
		if err := e.WriteField(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	for range 50_000 {
		if err := framer.WriteData(1, false, make([]byte, 5)); err != nil {
			break // the server has closed the connection
		}
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if f.rejected(t, "bytes") != 1 {
			return errors.New("the connection stays open")
		}
		return nil
	})
}

// Clients of one identity that all come at once with long messages, as after a server's restart, are all served.
func TestManyLongMessagesAtOnce(t *testing.T) {
	f := start(t, func(c *rpc.ServerConfig) { c.MaxRecvBytes = 1 << 20 })
	src := f.ca.NewSVID("istio-system", "client")
	const clients = 40
	failed := make(chan error, clients)
	for range clients {
		client := f.dial(t, src, nil)
		go func() {
			_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 900<<10)}})
			failed <- err
		}()
	}
	for range clients {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// Sidecars that all start behind one address wait for a slot, and none is refused.
func TestManyClientsOfOneAddress(t *testing.T) {
	const clients = 60
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	f := start(t, func(c *rpc.ServerConfig) { c.MaxUnauthenticatedPerAddress = clients / 4 })
	src := f.ca.NewSVID("istio-system", "client")
	failed := make(chan error, clients)
	for range clients {
		client := f.dial(t, src, nil)
		go func() {
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.WaitForReady(true))
			failed <- err
		}()
	}
	for range clients {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// Silent connections are bounded, and do not keep others out.
func TestIdleUnauthenticatedConnections(t *testing.T) {
	f := start(t, func(c *rpc.ServerConfig) { c.UnauthenticatedTimeout = 8 * time.Second })
	const idle = 300
	open := make(chan struct{}, idle)
	var closed atomic.Int32
	for range idle {
		go func() {
			cfg := tlsconf.Client(f.ca.RootsOnly(), f.ca.ID("istio-system", "server"))
			cfg.NextProtos = []string{"h2"}
			conn, err := tls.Dial("tcp", f.addr, cfg)
			if err == nil {
				defer conn.Close()
				_, _ = conn.Write([]byte(http2.ClientPreface))
				_ = http2.NewFramer(conn, nil).WriteSettings()
			}
			open <- struct{}{}
			if err == nil {
				_, _ = io.Copy(io.Discard, conn)
			}
			closed.Add(1)
		}()
	}
	for range idle {
		<-open
	}
	testkit.Quick(t, 6*time.Second, func() time.Duration {
		began := time.Now()
		if _, err := f.dial(t, f.ca.NewSVID("istio-system", "client"), nil).UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
			t.Errorf("another client: %v", err)
		}
		return time.Since(began)
	})
	if n := f.rejected(t, "address") + f.rejected(t, "unauthenticated"); n < idle-rpc.DefaultMaxUnauthenticatedPerAddress {
		t.Errorf("%d connections were evicted, want %d", n, idle-rpc.DefaultMaxUnauthenticatedPerAddress)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := closed.Load(); n < idle {
			return errors.New("some stay open without having authenticated")
		}
		return nil
	})
}

func TestHealthChecksAreServedAgainAndAgain(t *testing.T) {
	f := start(t, func(c *rpc.ServerConfig) { c.UnauthenticatedTimeout = 200 * time.Millisecond })
	client := healthpb.NewHealthClient(f.conn(t, f.ca.RootsOnly(), nil))
	testkit.Eventually(t, testkit.Patience, func() error {
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil &&
			!strings.Contains(err.Error(), "EOF") &&
			!strings.Contains(err.Error(), "reset") {
			t.Errorf("health check: %v", err)
		}
		if f.rejected(t, "unauthenticated") < 2 {
			return errors.New("no connection was closed twice yet")
		}
		return nil
	})
}
