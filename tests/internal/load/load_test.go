package load

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// until waits for so many answers.
func until(t *testing.T, l *Load, n int) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.taken.Sent < n {
			return fmt.Errorf("%d requests sent, want %d", l.taken.Sent, n)
		}
		return nil
	})
}

func TestRequestsThatAreAnsweredHold(t *testing.T) {
	var fresh, all atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		all.Add(1)
		if r.Header.Get("Connection") == "close" {
			fresh.Add(1)
		}
	}))
	s.Start()
	defer s.Close()
	l := Start(t, Config{Rate: 500, URL: s.URL})
	until(t, l, 400)
	l.Stop()
	if taken := l.Take(); taken.Failed > 0 {
		t.Errorf("%d of %d requests failed: %s", taken.Failed, taken.Sent, taken.First)
	}
	if share := float64(fresh.Load()) / float64(all.Load()); share < 0.4 || share > 0.6 {
		t.Errorf("a share of %.2f came over a connection of its own, want half", share)
	}
}

func TestNewConnectionsOnly(t *testing.T) {
	var kept atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Connection") != "close" {
			kept.Add(1)
		}
	}))
	defer s.Close()
	l := Start(t, Config{Rate: 500, URL: s.URL, New: true})
	until(t, l, 100)
	l.Stop()
	if n := kept.Load(); n > 0 {
		t.Errorf("%d requests came over connections that are kept", n)
	}
}

// Each of these fails some requests, and no other.
func TestWhatUsersNoticeIsAFailure(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"another status than 200": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "sorry", http.StatusServiceUnavailable) },
			"503 Service Unavailable"},
		"half an answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = w.Write([]byte("half"))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "the answer ends early"},
		"a connection that is closed": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int64
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if n.Add(1)%100 == 0 {
					c.handler(w, r)
				}
			}))
			defer s.Close()
			l := Start(t, Config{Rate: 500, URL: s.URL})
			until(t, l, 300)
			l.Stop()
			taken := l.Take()
			if want := int(n.Load() / 100); taken.Failed != want || !strings.Contains(strings.Join(taken.First, "\n"), c.want) {
				t.Errorf("%d requests failed, want %d: %s", taken.Failed, want, taken.First)
			}
		})
	}
}

func TestNothingIsSentASecondTime(t *testing.T) {
	// net/http repeats a GET that a kept connection does not answer.
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Connection") != "close" && n.Add(1) == 50 {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				conn.Close()
			}
		}
	}))
	defer s.Close()
	l := Start(t, Config{Rate: 500, URL: s.URL})
	until(t, l, 300)
	l.Stop()
	if taken := l.Take(); taken.Failed != 1 || !strings.Contains(strings.Join(taken.First, "\n"), "without a warning") {
		t.Errorf("%d failures, want that of one connection: %s", taken.Failed, taken.First)
	}
}
