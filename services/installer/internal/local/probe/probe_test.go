package probe_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/probe"
)

func TestOnce(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "web.example" || r.Header.Get("X-Probe") != "1" {
			http.Error(w, "headers are missing", http.StatusBadRequest)
		}
	})
	mux.Handle("/moved", http.RedirectHandler("/bad", http.StatusFound))
	mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "broken\n inside", http.StatusServiceUnavailable)
	})
	mux.HandleFunc("/ours", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"ready":false,"failed":[{"check":"identity","error":"no certificate yet"}]}`))
	})
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	s := httptest.NewServer(mux)
	defer s.Close()
	for path, want := range map[string]string{
		"/ok": "", "/moved": "", "/bad": "503 Service Unavailable: broken inside",
		"/ours": "identity: no certificate yet", "/hang": "deadline",
	} {
		timeout := testkit.Patience
		if path == "/hang" {
			timeout = 30 * time.Millisecond
		}
		err := probe.Once(context.Background(), &plan.Probe{URL: s.URL + path, Host: "web.example", Headers: map[string]string{"X-Probe": "1"},
			Timeout: timeout})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	tcp := &plan.Probe{TCP: s.Listener.Addr().String(), Timeout: testkit.Patience}
	if err := probe.Once(context.Background(), tcp); err != nil {
		t.Errorf("open port: %v", err)
	}
	s.Close()
	if err := probe.Once(context.Background(), tcp); err == nil {
		t.Error("closed port: success")
	}
}

func TestThresholds(t *testing.T) {
	c := probe.NewCounter(&plan.Probe{SuccessThreshold: 2, FailureThreshold: 3})
	for i, step := range []struct{ ok, ready bool }{
		{true, false}, {false, false}, {true, false}, {true, true}, // two in a row
		{false, true}, {false, true}, {true, true}, // a success between
		{false, true}, {false, true}, {false, false}, {true, false}, {true, true},
	} {
		if got := c.Add(step.ok); got != step.ready {
			t.Errorf("step %d: ready %t", i, got)
		}
	}
}
