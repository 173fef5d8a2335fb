package metrics

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"fairlead.dev/pkg/testkit"
)

type fakeEnvoy struct {
	text string
	path string
}

func (f *fakeEnvoy) Request(_ context.Context, _, path string) (io.ReadCloser, error) {
	f.path = path
	if f.text == "" {
		return nil, errors.New("connection refused")
	}
	return io.NopCloser(strings.NewReader(f.text)), nil
}

const envoyText = "# TYPE envoy_server_live gauge\nenvoy_server_live{} 1\n# TYPE envoy_istio_requests_total " +
	"counter\nenvoy_istio_requests_total{reporter=\"source\"} 3\n"

// rig is a Handler with an application behind it.
type rig struct {
	*Handler
	envoy *fakeEnvoy
	// asked has the headers that an application was asked with last; applications are asked at the same time.
	asked atomic.Pointer[http.Header]
}

func newRig(t *testing.T, applications ...http.HandlerFunc) *rig {
	t.Helper()
	r := &rig{envoy: &fakeEnvoy{text: envoyText}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector())
	var targets []Target
	for _, h := range applications {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			headers := req.Header.Clone()
			r.asked.Store(&headers)
			h(w, req)
		}))
		t.Cleanup(s.Close)
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		targets = append(targets, Target{Port: uint16(port), URL: s.URL + "/metrics"})
	}
	r.Handler = New(Config{Envoy: r.envoy, Targets: targets, Registry: registry, Log: testkit.Logger(t)})
	return r
}

// scrape sends a request with headers and returns the answer, whose body is uncompressed.
func (r *rig) scrape(t *testing.T, headers ...string) (contentType, body string) {
	t.Helper()
	s := httptest.NewServer(r)
	defer s.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/stats/prometheus?usedonly&format=json", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableCompression: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if in, err = gzip.NewReader(in); err != nil {
			t.Fatal(err)
		}
	}
	data, err := io.ReadAll(in)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	return resp.Header.Get("Content-Type"), string(data)
}

// values parses text as Prometheus does, and returns single samples by name.
func values(t *testing.T, body string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("%v:\n%s", err, body)
	}
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += "," + l.GetValue()
			}
			out[name+labels] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
		}
	}
	return out
}

func plain(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, body)
	}
}

func open(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0")
		_, _ = io.WriteString(w, body)
	}
}

// prometheusAccepts is what Prometheus sends.
const prometheusAccepts = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"

// Envoy's, the application's and the agent's metrics are in one scrape. A Go program's own metrics are the
// application's; the agent's have Istio's prefix.
func TestScrapeHasAllSources(t *testing.T) {
	r := newRig(t, plain("# TYPE orders counter\norders 7\n# TYPE go_goroutines gauge\ngo_goroutines 4242\n"))
	kind, body := r.scrape(t, "User-Agent", "Prometheus/3", timeoutHeader, "9.5")
	if !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Errorf("Content-Type %q", kind)
	}
	got := values(t, body)
	for name, want := range map[string]float64{
		"envoy_server_live": 1, "istio_requests_total,source": 3, "orders": 7, "go_goroutines": 4242, "istio_agent_scrapes_total": 1,
		"istio_agent_scrape_failures_total,envoy": 0, "istio_agent_scrape_failures_total,application": 0,
		"istio_agent_scrape_failures_total,agent": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v %t, want %v", name, v, ok, want)
		}
	}
	if n := got["istio_agent_go_goroutines"]; n < 1 || n == 4242 {
		t.Errorf("istio_agent_go_goroutines is %v", n)
	}
	if asked := *r.asked.Load(); asked.Get("User-Agent") != "Prometheus/3" || asked.Get(timeoutHeader) != "9.5" ||
		strings.Contains(asked.Get("Accept"), "openmetrics") {
		t.Errorf("the application is asked with %v", asked)
	}
	if r.envoy.path != "/stats/prometheus?usedonly=" {
		t.Errorf("Envoy is asked for %q", r.envoy.path)
	}
}

// The format is the application's if the scraper takes it, for all sources.
func TestFormatOfScrapes(t *testing.T) {
	om := "# TYPE orders counter\norders_total 7.0 # {trace_id=\"1\"} 1.0\n# EOF\n"
	text := "# TYPE orders_total counter\norders_total 7\n"
	for _, tc := range []struct {
		name     string
		accept   string
		apps     []http.HandlerFunc
		om       bool
		exemplar bool
	}{
		{"both speak OpenMetrics", prometheusAccepts, []http.HandlerFunc{open(om)}, true, true},
		{"the application speaks text", prometheusAccepts, []http.HandlerFunc{plain(text)}, false, false},
		{"the scraper speaks text, the application does not care", "text/plain", []http.HandlerFunc{open(om)}, false, false},
		{"two targets speak different formats", prometheusAccepts, []http.HandlerFunc{plain("other 1\n"), open(om)}, true, true},
		{"no application", prometheusAccepts, nil, false, false},
		{"malformed Accept", ";;;", []http.HandlerFunc{plain(text)}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.apps...)
			kind, body := r.scrape(t, "Accept", tc.accept, "Accept-Encoding", "gzip")
			if got := strings.HasPrefix(kind, "application/openmetrics-text"); got != tc.om {
				t.Errorf("Content-Type %q", kind)
			}
			if n := strings.Count(body, "# EOF"); tc.om != (n == 1 && strings.HasSuffix(body, "\n# EOF\n")) || !tc.om && n > 0 {
				t.Errorf("%d ends of %q", n, body[max(len(body)-40, 0):])
			}
			if strings.Contains(body, `# {trace_id="1"} 1.0`) != tc.exemplar {
				t.Error("exemplar")
			}
			if len(tc.apps) > 0 && !strings.Contains(body, "\norders_total 7") {
				t.Error("no application")
			}
			if !strings.Contains(body, "\nistio_requests_total{") || !strings.Contains(body, "\nistio_agent_scrapes_total 1") {
				t.Error("no Envoy, or no agent")
			}
			if !tc.om {
				values(t, body)
			} else if strings.Contains(body, "envoy_server_live counter") || strings.Contains(body, "# TYPE istio_requests_total") {
				t.Errorf("text in OpenMetrics:\n%s", body)
			}
		})
	}
}

// A source that fails is counted, and the others are there.
func TestScrapeWithoutASource(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	stall := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "orders 7\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	for _, tc := range []struct {
		name   string
		app    http.HandlerFunc
		envoy  string
		failed string
		orders bool
	}{
		{"Envoy away", plain("orders 7\n"), "", ofEnvoy, true},
		{"the application does not answer", hang, envoyText, ofApplication, false},
		{"the application stalls", stall, envoyText, ofApplication, true},
		{"an error", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, envoyText, ofApplication,
			false},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, envoyText,
			ofApplication, false},
		{"no metrics", plain("<html>\n"), envoyText, ofApplication, false},
		{"half a body", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "orders 7\nhalf")
		}, envoyText, ofApplication, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.app)
			r.envoy.text = tc.envoy
			began := time.Now()
			_, body := r.scrape(t, timeoutHeader, "5") // of which half a second is for the way back
			got := values(t, body)
			for _, kind := range []string{ofEnvoy, ofApplication, ofAgent} {
				want := 0.0
				if kind == tc.failed {
					want = 1
				}
				if v := got["istio_agent_scrape_failures_total,"+kind]; v != want {
					t.Errorf("failures of %s: %v, want %v", kind, v, want)
				}
			}
			if _, ok := got["orders"]; ok != tc.orders {
				t.Errorf("the application's metrics: %t", ok)
			}
			if _, ok := got["envoy_server_live"]; ok != (tc.envoy != "") {
				t.Errorf("Envoy's metrics: %t", ok)
			}
			if took := time.Since(began); took > 5*time.Second+testkit.Patience/2 {
				t.Errorf("took %s", took)
			}
		})
	}
}

// Scrapes from outside are refused where they are to stay in the Pod, and more than some at once.
func TestScrapesThatAreRefused(t *testing.T) {
	r := newRig(t)
	r.cfg.LocalOnly = true
	for _, tc := range []struct {
		from, to string
		want     int
	}{
		{"10.0.0.1:1", "10.0.0.2", 403}, {"127.0.0.6:1", "10.0.0.2", 403}, {"[::6]:1", "fd00::2", 403}, {"10.0.0.1:1", "127.0.0.1", 403},
		{"127.0.0.1:1", "127.0.0.1", 200}, {"[::1]:1", "::1", 200},
	} {
		w, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/stats/prometheus", http.NoBody)
		req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey,
			net.Addr(&net.TCPAddr{IP: net.ParseIP(tc.to), Port: 15020})))
		req.RemoteAddr = tc.from
		if r.ServeHTTP(w, req); w.Code != tc.want {
			t.Errorf("from %s to %s: %d", tc.from, tc.to, w.Code)
		}
	}
	r.cfg.LocalOnly = false
	for i := range maxScrapes {
		req := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		req.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", 10+i/maxPerAddress)
		if _, err := r.scrapers.admit(httptest.NewRecorder(), req, time.Minute); err != nil {
			t.Fatal(err)
		}
		// The first is of an address that has all it may have, the last of one that comes too late.
		if w := httptest.NewRecorder(); i == maxPerAddress-1 || i == maxScrapes-1 {
			if i == maxScrapes-1 {
				req.RemoteAddr = "192.0.2.99:1"
			}
			if r.ServeHTTP(w, req); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "run already") {
				t.Errorf("after %d scrapes: %d %s", i+1, w.Code, w.Body)
			}
		}
	}
}

// The targets are those of the annotations; the proxy's own ports are refused, since scraping them would not end.
func TestParseTargets(t *testing.T) {
	for text, want := range map[string]string{
		``: "", `{"scrape":"false","port":"15020"}`: "",
		`{"scrape":"true"}`: "http://localhost:80/metrics",
		`{"scrape":"true","path":"stats?a=b","port":"8080"}`:    "http://localhost:8080/stats?a=b",
		`{"targets":[{"port":"1"},{"port":"2","path":"/x#y"}]}`: "http://localhost:1/metrics http://localhost:2/x",
		`[]`: "error want JSON such as", `{"port":8080}`: "error want JSON such as",
		`{"port":"http"}`: `error port "http"`, `{"port":"0"}`: `error port "0"`, `{"port":"70000"}`: `error port "70000"`,
		`{"port":"15020"}`: "error port 15020 is that of the agent", `{"port":"015090"}`: "error port 15090 is that of Envoy's metrics",
		`{"port":"25020"}`: "error port 25020 is the proxy's own", `{"path":"/%zz"}`: "error path",
		fmt.Sprintf(`{"targets":[%s{}]}`, strings.Repeat("{},", maxTargets)): "error 33 targets",
	} {
		targets, err := ParseTargets(text, 25020)
		var got []string
		for _, t := range targets {
			got = append(got, t.URL)
		}
		if part, fails := strings.CutPrefix(want, "error "); fails {
			if err == nil || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), Variable) {
				t.Errorf("%.60s: error %v, want %q", text, err, part)
			}
		} else if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v %v, want %s", text, got, err, want)
		}
	}
}
