package catalog

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// server answers when it is told to, and counts connections.
type server struct {
	*httptest.Server
	waiting atomic.Int64
	conns   atomic.Int64
	release chan struct{}
	pool    *pool
}

func newServer(t *testing.T, secure, multiplexed bool) *server {
	s := &server{release: make(chan struct{})}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.waiting.Add(1)
		defer s.waiting.Add(-1)
		if r.URL.Path == "/wait" {
			select {
			case <-s.release:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "done")
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.conns.Add(1)
		}
	}
	s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 250}
	s.EnableHTTP2 = multiplexed
	cfg := &Config{DialContext: (&net.Dialer{}).DialContext}
	if secure {
		s.StartTLS()
		cfg.TLS = &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	testkit.NoError(t, err)
	s.pool = newPool(cfg, u)
	t.Cleanup(s.pool.close)
	return s
}

func (s *server) get(ctx context.Context, path string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	if err != nil {
		return err
	}
	resp, err := s.pool.RoundTrip(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.ReadAll(resp.Body)
	return err
}

// ask begins requests that wait, and returns how to wait for their end.
func (s *server) ask(ctx context.Context, t *testing.T, n int) (wait func()) {
	var tasks sync.WaitGroup
	for range n {
		tasks.Go(func() {
			if err := s.get(ctx, "/wait"); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	return tasks.Wait
}

// await waits until so many requests wait.
func (s *server) await(t *testing.T, n int64) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		if have := s.waiting.Load(); have != n {
			return fmt.Errorf("%d requests wait, want %d", have, n)
		}
		return nil
	})
}

func TestHTTP2SharesConnections(t *testing.T) {
	s := newServer(t, true, true)
	wait := s.ask(t.Context(), t, 1000)
	s.await(t, 1000)
	// Connections that are opened at once may be one more for each dial.
	if n := s.conns.Load(); n < 5 || n > 5+maxDials || s.pool.watches() != 11_900 {
		t.Errorf("%d connections, %d watches", n, s.pool.watches())
	}
	close(s.release)
	wait()
}

func TestWithoutHTTP2ConnectionsAreFewerThanConsulAdmits(t *testing.T) {
	for name, secure := range map[string]bool{"plaintext": false, "TLS without HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, secure, false)
			ctx, cancel := context.WithCancel(t.Context())
			wait := s.ask(ctx, t, 300)
			s.await(t, plainWatches+plainReads)
			if s.pool.watches() != plainWatches {
				t.Errorf("%d watches", s.pool.watches())
			}
			late, end := context.WithCancel(t.Context())
			end()
			if err := s.get(late, "/"); err == nil || !strings.Contains(err.Error(), "no connection is free") {
				t.Errorf("one more request: %v", err)
			}
			close(s.release)
			wait()
			if n := s.conns.Load(); n != plainWatches+plainReads {
				t.Errorf("%d connections", n)
			}
			cancel()
			for range 5 { // the connections are used again
				testkit.NoError(t, s.get(t.Context(), "/"))
			}
			if n := s.conns.Load(); n != plainWatches+plainReads {
				t.Errorf("%d connections", n)
			}
		})
	}
}

func TestLostConnectionsAreReplaced(t *testing.T) {
	for name, multiplexed := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, true, multiplexed)
			testkit.NoError(t, s.get(t.Context(), "/"))
			s.CloseClientConnections()
			testkit.Eventually(t, testkit.Patience, func() error { return s.get(t.Context(), "/") })
			if n := s.conns.Load(); n != 2 {
				t.Errorf("%d connections", n)
			}
			s.pool.close()
			if err := s.get(t.Context(), "/"); err == nil {
				t.Error("a pool that is closed makes requests")
			}
		})
	}
}
