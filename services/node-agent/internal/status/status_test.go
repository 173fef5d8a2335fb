package status

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"fairlead.dev/pkg/testkit"
)

type fakeEnvoy string

func (f fakeEnvoy) Request(context.Context, string, string) (io.ReadCloser, error) {
	if f == "" {
		return nil, errors.New("connection refused")
	}
	return io.NopCloser(strings.NewReader(string(f))), nil
}

func TestMetrics(t *testing.T) {
	for _, tc := range []struct {
		name  string
		envoy fakeEnvoy
		want  map[string]float64
	}{
		{"both", "# TYPE envoy_server_live gauge\nenvoy_server_live{} 1\n", map[string]float64{"envoy_server_live": 1, "fairlead_test": 7, "fairlead_node_agent_envoy_scrape_failures_total": 0}},
		{"Envoy away", "", map[string]float64{"fairlead_test": 7, "fairlead_node_agent_envoy_scrape_failures_total": 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_test"})
			g.Set(7)
			registry.MustRegister(g)
			m, err := NewMetrics(tc.envoy, registry, testkit.Logger(t))
			if err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			m.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/stats/prometheus", nil))
			parser := expfmt.NewTextParser(model.UTF8Validation)
			families, err := parser.TextToMetricFamilies(w.Body)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]float64{}
			for name, f := range families {
				got[name] = f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
			}
			if len(got) != len(tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			for name, v := range tc.want {
				if got[name] != v {
					t.Errorf("%s is %v, want %v", name, got[name], v)
				}
			}
		})
	}
}

func TestReady(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code int
		body string
	}{
		{nil, http.StatusOK, "ready\n"},
		{errors.New("no certificate yet"), http.StatusServiceUnavailable, "not ready: no certificate yet\n"},
	} {
		w := httptest.NewRecorder()
		Ready(func(context.Context) error { return tc.err }).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz/ready", nil))
		if w.Code != tc.code || w.Body.String() != tc.body {
			t.Errorf("%v: %d %q", tc.err, w.Code, w.Body)
		}
	}
}
