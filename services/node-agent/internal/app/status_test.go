package app

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/envoy"
	"fairlead.dev/services/node-agent/internal/readiness"
	"fairlead.dev/services/node-agent/internal/relay"
	"fairlead.dev/services/node-agent/internal/sds"
)

// Only these paths are for everybody on 15020; all others are refused, and
// nothing can be changed there.
func TestStatusServerHandlers(t *testing.T) {
	public := []string{"/healthz/ready", "/livez", "/metrics", "/readyz", "/stats/prometheus"}
	source := testkit.PKI(t).NewSVID("shop", "web")
	admin := envoy.NewAdmin(filepath.Join(t.TempDir(), "nobody"))
	c := &config.Config{StatusAddress: netip.MustParseAddrPort("127.0.0.1:0")}
	s := statusServer(c, admin, readiness.New(admin, source, nil, nil), prometheus.NewRegistry(), testkit.Logger(t))
	handlers := s.Handlers()
	if len(handlers) <= len(public) {
		t.Fatalf("handlers %v", handlers)
	}
	for _, h := range handlers {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, h.Path, nil))
		refused := w.Code == http.StatusUnauthorized || w.Code == http.StatusForbidden
		if want := !slices.Contains(public, h.Path); refused != want {
			t.Errorf("GET %s without credentials: %d", h.Path, w.Code)
		}
		w = httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, h.Path, strings.NewReader("x")))
		if w.Code < 400 {
			t.Errorf("POST %s without credentials: %d", h.Path, w.Code)
		}
	}
}

// Metrics are named as Prometheus wants it.
func TestMetricNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	source := testkit.PKI(t).NewSVID("shop", "web")
	sds.New(sds.Config{Source: source, Log: testkit.Logger(t), Registerer: registry})
	relay.New(relay.Config{Source: source, Log: testkit.Logger(t), Registerer: registry})
	envoy.NewMetrics(registry)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) == 0 {
		t.Fatal("no metrics")
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
