package webhook

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// A counter that an alert reads is there before it counts, and the histogram can tell what objective and alert ask.
func TestMetricsAreThereFromTheStart(t *testing.T) {
	registry := prometheus.NewRegistry()
	h := NewHandler(Config{
		Metrics: "test", Serves: func(p string) bool { return p == "/hook" }, Path: "/hook", Reasons: []string{"own"}, Registerer: registry,
		Memory: 1 << 20, ValueBytes: 100, MaxValues: 1000,
		Review: func(context.Context, *http.Request, []byte) ([]byte, error) { return nil, NotReview("never") },
	})
	read := func() (reasons []string, total float64, bounds []float64) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, b := range m.GetHistogram().GetBucket() {
					bounds = append(bounds, b.GetUpperBound())
				}
				if c := m.GetCounter(); c != nil {
					reasons, total = append(reasons, m.GetLabel()[0].GetValue()), total+c.GetValue()
				}
			}
		}
		return reasons, total, bounds
	}
	before, _, bounds := read()
	if !slices.Contains(bounds, 0.05) || !slices.Contains(bounds, 0.5) || !slices.IsSorted(bounds) {
		t.Errorf("bounds %v", bounds)
	}
	if !slices.Contains(before, "own") {
		t.Errorf("reasons %v", before)
	}
	requests := []struct{ method, path, media, body string }{
		{"POST", "/", "application/json", "{}"}, {"GET", "/hook", "application/json", ""}, {"POST", "/hook", "text/plain", "{}"},
		{"POST", "/hook", "application/json", strings.Repeat(" ", MaxBodyBytes+1)}, {"POST", "/hook", "application/json", "{}"},
	}
	for _, q := range requests {
		r := httptest.NewRequest(q.method, q.path, strings.NewReader(q.body))
		r.Header.Set("Content-Type", q.media)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code < 400 {
			t.Errorf("%s %s is answered with %d", q.method, q.path, w.Code)
		}
	}
	if after, total, _ := read(); total != float64(len(requests)) || !slices.Equal(after, before) {
		t.Errorf("%v refused, by reasons %v, of which there were %v", total, after, before)
	}
}
