package probe_test

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/tests/internal/probe"
)

// envoy answers as an Envoy's admin interface, and the services' pages do.
func envoy(t *testing.T) *http.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
		case "/metrics":
			fmt.Fprint(w, "# TYPE bytes_total counter\nbytes_total{direction=\"in\",of=\"a\"} 1\nbytes_total{direction=\"in\",of=\"b\"} "+
				"2\nbytes_total{direction=\"out\",of=\"a\"} 4\n")
		case "/stats":
			if r.URL.RawQuery != "filter=a.%2A&usedonly" {
				http.Error(w, r.URL.RawQuery, http.StatusBadRequest)
			}
			fmt.Fprint(w, "a.b: 3\na.c: No recorded values\na.d: -1\n")
		default:
			http.Error(w, "not this", http.StatusTeapot)
		}
	}))
	server.Listener = lis
	server.Start()
	t.Cleanup(server.Close)
	return probe.Unix(socket)
}

func TestReadyWantsOK(t *testing.T) {
	client := envoy(t)
	if err := probe.Ready(t.Context(), client, "http://x/readyz"); err != nil {
		t.Error(err)
	}
	if err := probe.Ready(t.Context(), client, "http://x/other"); err == nil ||
		!strings.Contains(err.Error(), "http://x/other: 418 I'm a teapot: not this") {
		t.Errorf("got %v", err)
	}
}

func TestMetricSumsTheLabelSetsThatAreAskedFor(t *testing.T) {
	client := envoy(t)
	for _, tc := range []struct {
		name   string
		labels map[string]string
		want   float64
		wrong  bool
	}{
		{"bytes_total", nil, 7, false},
		{"bytes_total", map[string]string{"direction": "in"}, 3, false},
		{"bytes_total", map[string]string{"direction": "in", "of": "b"}, 2, false},
		{"bytes_total", map[string]string{"direction": "up"}, 0, true},
		{"other_total", nil, 0, true},
	} {
		got, err := probe.Metric(t.Context(), client, "http://x/metrics", tc.name, tc.labels)
		if got != tc.want || (err != nil) != tc.wrong {
			t.Errorf("%s%v is %v, %v; want %v", tc.name, tc.labels, got, err, tc.want)
		}
	}
}

func TestStatsAreCountersAndGauges(t *testing.T) {
	got, err := probe.Stats(t.Context(), envoy(t), "a.*", "&usedonly")
	if want := map[string]int64{"a.b": 3, "a.d": -1}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}
