package testkit

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// Unfinished is an attack: calls of a gRPC method, each with a message of Size that lacks its last byte until the test
// ends.
type Unfinished struct {
	// TLS is the configuration of a client.
	TLS *tls.Config
	// URL is https://host:port/package.Service/Method.
	URL               string
	Connections, Size int
	// Token is sent with each call if it is not empty.
	Token string
}

// Run starts the attack. It returns how many bytes it has sent when the server has stopped reading.
func (u Unfinished) Run(t testing.TB) int64 {
	t.Helper()
	var sent atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	for range u.Connections {
		cfg := u.TLS.Clone()
		cfg.NextProtos = []string{"h2"}
		transport := &http2.Transport{TLSClientConfig: cfg}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.URL, &message{
			head: binary.BigEndian.AppendUint32([]byte{0}, uint32(u.Size)), left: u.Size - 1, sent: &sent, end: ctx.Done(), //nolint:gosec // small
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/grpc")
		r.Header.Set("TE", "trailers")
		if u.Token != "" {
			r.Header.Set("Authorization", "Bearer "+u.Token)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if resp, err := transport.RoundTrip(r); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}()
		t.Cleanup(func() { cancel(); <-done; transport.CloseIdleConnections() })
	}
	last, since := int64(-1), time.Now()
	Eventually(t, Patience, func() error {
		if now := sent.Load(); now != last {
			last, since = now, time.Now()
		}
		if last == 0 || time.Since(since) < 300*time.Millisecond && last < int64(u.Connections)*int64(u.Size-1) {
			return errors.New("the attack is still growing")
		}
		return nil
	})
	return last
}

// message is the body of a call.
type message struct {
	head []byte
	left int
	sent *atomic.Int64
	end  <-chan struct{}
}

// Read returns the message up to its last byte, and then blocks until the end of the test.
func (m *message) Read(p []byte) (int, error) {
	if len(m.head) > 0 {
		n := copy(p, m.head)
		m.head = m.head[n:]
		return n, nil
	}
	n := min(m.left, len(p))
	if n == 0 {
		<-m.end
		return 0, io.ErrUnexpectedEOF
	}
	clear(p[:n])
	m.left -= n
	m.sent.Add(int64(n))
	return n, nil
}
