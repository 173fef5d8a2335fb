package rpc_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

// silence keeps connections from a loopback address open that send nothing, and opens each again when it is closed,
// until the test ends.
func (f *fixture) silence(t *testing.T, from string, connections int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	var running, opened sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for range connections {
		opened.Add(1)
		running.Go(func() {
			first := sync.OnceFunc(opened.Done)
			defer first()
			for ctx.Err() == nil {
				conn, err := dialer.DialContext(ctx, "tcp", f.addr)
				first()
				if err != nil {
					continue
				}
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = io.Copy(io.Discard, conn)
				stop()
				_ = conn.Close()
			}
		})
	}
	opened.Wait()
}

// A client of another address is served at once, however many silent connections some addresses hold and open again.
func TestSilentAddressesKeepNobodyOut(t *testing.T) {
	for _, addresses := range []int{1, 6} {
		t.Run(fmt.Sprint(addresses), func(t *testing.T) {
			f := start(t, func(c *rpc.ServerConfig) { c.MaxConnections = 400 }) // 40 without authentication
			for i := range addresses {
				f.silence(t, fmt.Sprintf("127.0.7.%d", i+1), 60)
			}
			src := f.ca.NewSVID("istio-system", "client")
			for i := range 10 {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				if _, err := f.dial(t, src, nil).UnaryCall(ctx, &testpb.SimpleRequest{}); err != nil {
					t.Errorf("client %d of another address: %v", i, err)
				}
				cancel()
			}
		})
	}
}

// cutOff is a connection that drops what is written after a number of bytes.
type cutOff struct {
	net.Conn
	left int
}

func (c *cutOff) Write(p []byte) (int, error) {
	if n := min(len(p), c.left); n > 0 {
		if _, err := c.Conn.Write(p[:n]); err != nil {
			return 0, err
		}
		c.left -= n
	}
	return len(p), nil
}

// shows opens a connection with a certificate chain that is longer by the given number of bytes of other certificates,
// and cuts the handshake off after most bytes.
func (f *fixture) shows(t *testing.T, more, most int) (*tls.Conn, error) {
	t.Helper()
	src := f.ca.NewSVID("istio-system", "client")
	m, err := src.Current()
	if err != nil {
		t.Fatal(err)
	}
	chain := *m.Certificate
	chain.Certificate = append(chain.Certificate[:1:1], f.ca.Cert.Raw)
	for one := f.intermediate(); more > 0; more -= len(one) {
		chain.Certificate = append(chain.Certificate, one)
	}
	cfg := tlsconf.Client(src, f.ca.ID("istio-system", "server"))
	cfg.NextProtos = []string{"h2"}
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &chain, nil }
	raw, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	conn := tls.Client(&cutOff{Conn: raw, left: most}, cfg)
	return conn, conn.HandshakeContext(t.Context())
}

// intermediate returns a certificate of about 2 KiB.
func (f *fixture) intermediate() []byte {
	block, _ := pem.Decode(f.ca.Sign(f.ca.ID("a", "b"), f.ca.Key.Public(), func(c *x509.Certificate) {
		c.DNSNames = []string{strings.Repeat("x", 1500)}
	}))
	return block.Bytes
}

// The server buffers no more of an unfinished certificate message than a real chain has.
func TestUnfinishedHandshakesAreBounded(t *testing.T) {
	f := start(t, nil)
	const clients = 60
	before := heap()
	for range clients {
		_, _ = f.shows(t, 240_000, 220_000) // a client may be refused while it still writes
	}
	if grown := heap() - before; grown > 6<<20 { // twice the bound, for the test's own memory
		t.Errorf("the heap grew by %d KiB", grown>>10)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if n := f.rejected(t, "handshake"); n != clients {
			return fmt.Errorf("%d connections were rejected, want %d", n, clients)
		}
		return nil
	})
	if !strings.Contains(f.log.String(), "TLS handshake messages of more than") {
		t.Error("the log does not say why")
	}
}

// A chain with a dozen intermediate certificates passes.
func TestLongChainsPass(t *testing.T) {
	f := start(t, nil)
	conn, err := f.shows(t, 12*1900, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil { // gRPC's settings
		t.Errorf("refused after the handshake: %v", err)
	}
}
