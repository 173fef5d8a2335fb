package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"fairlead.dev/pkg/telemetry"
)

const (
	// Bounds of what is taken of Envoy and of each of the application's targets.
	maxEnvoy       = 256 << 20
	maxApplication = 64 << 20
	// maxAgent bounds the agent's own part.
	maxAgent = 4 << 20
	// A scrape takes as long as the scraper says, less a part for the way back.
	defaultTimeout = 10 * time.Second
	maxTimeout     = 30 * time.Second
	timeoutHeader  = "X-Prometheus-Scrape-Timeout-Seconds"
	maxHeaders     = 64 << 10
)

// Types of scrape_failures_total, those of Istio's agent.
const (
	ofEnvoy       = "envoy"
	ofApplication = "application"
	ofAgent       = "agent"
)

// Envoy is the client of Envoy's admin interface; *envoy.Admin implements it.
type Envoy interface {
	Request(ctx context.Context, method, path string) (io.ReadCloser, error)
}

// Config of a Handler. Registry and Log are required.
type Config struct {
	// Envoy is nil if no Envoy's metrics are to be merged.
	Envoy    Envoy
	Targets  []Target
	Registry *prometheus.Registry
	// LocalOnly refuses scrapes from outside the Pod.
	LocalOnly bool
	Log       *slog.Logger
}

// Handler merges the metrics. A source that fails is left out, counted and logged when it begins to fail.
type Handler struct {
	cfg      Config
	client   *http.Client
	scrapers scrapers
	scrapes  prometheus.Counter
	failures *prometheus.CounterVec
	writers  sync.Pool

	mu      sync.Mutex
	failing map[string]bool // by source
}

// New makes a Handler and registers its metrics, which have the names of those of Istio's agent.
func New(c Config) *Handler {
	h := &Handler{
		cfg: c, failing: map[string]bool{},
		scrapes: promauto.With(c.Registry).NewCounter(prometheus.CounterOpts{Name: "istio_agent_scrapes_total",
			Help: "Scrapes of /stats/prometheus."}),
		failures: telemetry.CounterVec(c.Registry, prometheus.CounterOpts{
			Name: "istio_agent_scrape_failures_total", Help: "Sources that were missing from a scrape of /stats/prometheus, or cut short.",
		}, "type", ofEnvoy, ofApplication, ofAgent),
		client: &http.Client{
			Transport: &http.Transport{
				DialContext: (&net.Dialer{}).DialContext, MaxIdleConnsPerHost: 1, MaxIdleConns: maxTargets, IdleConnTimeout: 90 * time.Second,
				MaxResponseHeaderBytes: maxHeaders,
			},
			// A redirect could lead to the agent itself, or out of the Pod.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	h.writers.New = func() any {
		w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is valid
		return w
	}
	return h
}

// formats are those of the answer.
var formats = []expfmt.Format{expfmt.NewFormat(expfmt.TypeTextPlain), openMetrics0, openMetrics1}

// The versions of OpenMetrics differ in nothing that is written here.
var (
	openMetrics0, _ = expfmt.NewOpenMetricsFormat(expfmt.OpenMetricsVersion_0_0_1)
	openMetrics1, _ = expfmt.NewOpenMetricsFormat(expfmt.OpenMetricsVersion_1_0_0)
)

// ServeHTTP streams Envoy's, the application's and the agent's metrics, in this order. The format is OpenMetrics if the
// scraper prefers it and the application has it, since only then is there anything in it that text does not have.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.cfg.LocalOnly && !fromLoopback(r) {
		http.Error(w, "metrics are for this Pod only: METRICS_LOCALHOST_ACCESS_ONLY is set", http.StatusForbidden)
		return
	}
	timeout := timeoutOf(r)
	to, err := h.scrapers.admit(w, r, timeout)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer h.scrapers.leave(to)
	h.scrapes.Inc()
	budget := timeout - min(timeout/10, 500*time.Millisecond)
	ctx, cancel := context.WithTimeout(r.Context(), budget)
	defer cancel()

	preferred := expfmt.NegotiateAccept(r.Header, formats...)
	wants := preferred.FormatType() == expfmt.TypeOpenMetrics
	answers := h.ask(ctx, r, wants, budget/2)
	defer func() {
		for _, a := range answers {
			a.close()
		}
	}()
	f, contentType := text, expfmt.NewFormat(expfmt.TypeTextPlain)
	for _, a := range answers {
		if wants && a.err == nil && a.format == openMetrics {
			f, contentType = openMetrics, preferred
		}
	}
	w.Header().Set("Content-Type", string(contentType))
	w.Header().Set("Vary", "Accept, Accept-Encoding")
	var out io.Writer = to
	if acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		zip := h.writers.Get().(*gzip.Writer)
		zip.Reset(to)
		defer func() {
			_ = zip.Close() // an error means that the scraper has gone
			h.writers.Put(zip)
		}()
		out = zip
	}

	m := newMerger(out, f)
	if h.cfg.Envoy != nil {
		h.note(r, ofEnvoy, "Envoy", h.copyEnvoy(ctx, m, r.URL.Query()))
	}
	for i, a := range answers {
		err := a.err
		if err == nil {
			err = m.copy(a.body, source{format: a.format, limit: maxApplication, check: true, whole: true})
		}
		h.note(r, ofApplication, h.cfg.Targets[i].URL, err)
	}
	h.note(r, ofAgent, "agent", h.copyAgent(m, contentType))
	m.finish()
}

// note counts a source's failure, and logs where failures begin and end. A scraper that has gone says nothing about a
// source.
func (h *Handler) note(r *http.Request, kind, name string, err error) {
	if r.Context().Err() != nil {
		return
	}
	h.mu.Lock()
	before := h.failing[name]
	h.failing[name] = err != nil
	h.mu.Unlock()
	switch {
	case err != nil:
		h.failures.WithLabelValues(kind).Inc()
		if !before {
			h.cfg.Log.Warn("metrics are missing from scrapes", "source", name, "error", err)
		}
	case before:
		h.cfg.Log.Info("metrics are in scrapes again", "source", name)
	}
}

// parameters are those of Envoy's admin interface that leave the format as it is.
var parameters = []string{"usedonly", "text_readouts", "filter", "histogram_buckets"}

func (h *Handler) copyEnvoy(ctx context.Context, m *merger, query url.Values) error {
	passed := url.Values{}
	for _, p := range parameters {
		if query.Has(p) {
			passed.Set(p, query.Get(p))
		}
	}
	path := "/stats/prometheus"
	if len(passed) > 0 {
		path += "?" + passed.Encode()
	}
	body, err := h.cfg.Envoy.Request(ctx, http.MethodGet, path)
	if err != nil {
		return err
	}
	defer body.Close()
	return m.copy(body, source{limit: maxEnvoy, rename: standardName})
}

var (
	envoyPrefix    = []byte("envoy_")
	standardPrefix = []byte("envoy_istio_")
)

// standardName gives Istio's standard metrics their names: Envoy's access logger makes them, and Envoy puts its own
// name before that of every metric.
func standardName(name []byte) []byte {
	if bytes.HasPrefix(name, standardPrefix) {
		return name[len(envoyPrefix):]
	}
	return name
}

// ownPrefix is put before the agent's metrics of its process and runtime, which an application in Go has too. Istio's
// agent does the same.
const ownPrefix = "istio_agent_"

func (h *Handler) copyAgent(m *merger, f expfmt.Format) error {
	families, err := h.cfg.Registry.Gather()
	var out bytes.Buffer
	encoder := expfmt.NewEncoder(&out, f)
	for _, family := range families {
		if name := family.GetName(); strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			renamed := ownPrefix + name
			family = &dto.MetricFamily{Name: &renamed, Help: family.Help, Type: family.Type, Metric: family.Metric, Unit: family.Unit}
		}
		err = errors.Join(err, encoder.Encode(family))
	}
	return errors.Join(err, m.copy(&out, source{format: m.format, limit: maxAgent}))
}

// answered is what a target of the application has answered so far: status and headers.
type answered struct {
	body   io.ReadCloser
	format format
	err    error
}

func (a answered) close() {
	if a.body != nil {
		_ = a.body.Close()
	}
}

// ask asks all targets at once and waits for their headers, at most for the given time: what the application has must
// be known before the first byte is written. The bodies are read one after the other, and are bound to ctx.
func (h *Handler) ask(ctx context.Context, r *http.Request, wantsOpenMetrics bool, patience time.Duration) []answered {
	out := make([]answered, len(h.cfg.Targets))
	var wg sync.WaitGroup
	for i, t := range h.cfg.Targets {
		wg.Go(func() { out[i] = h.askOne(ctx, r, t, wantsOpenMetrics, patience) })
	}
	wg.Wait()
	return out
}

func (h *Handler) askOne(ctx context.Context, r *http.Request, t Target, wantsOpenMetrics bool, patience time.Duration) answered {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(patience, func() { cancel(fmt.Errorf("no answer within %s", patience)) })
	defer late.Stop()
	fail := func(err error) answered {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return answered{err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.URL, http.NoBody)
	if err != nil {
		return fail(err)
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
	if wantsOpenMetrics {
		req.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
	}
	for _, name := range []string{"User-Agent", timeoutHeader} {
		if v := r.Header.Get(name); v != "" {
			req.Header.Set(name, v)
		}
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return fail(err)
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return fail(fmt.Errorf("the application answered with status %d", resp.StatusCode))
	}
	a := answered{body: body{resp.Body, cancel}, format: text}
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err == nil && kind == expfmt.OpenMetricsType {
		a.format = openMetrics
	}
	return a
}

// body ends the request's context when it is closed.
type body struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

// Close implements io.Closer.
func (b body) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// timeoutOf is how long the scraper waits.
func timeoutOf(r *http.Request) time.Duration {
	s, err := strconv.ParseFloat(r.Header.Get(timeoutHeader), 64)
	if err != nil || !(s > 0) {
		return defaultTimeout
	}
	return time.Duration(min(s, maxTimeout.Seconds()) * float64(time.Second))
}

func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, parameters, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name != "gzip" && name != "*" {
			continue
		}
		q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(parameters), "q="), 64)
		return err != nil || q > 0
	}
	return false
}

// fromLoopback reports whether both ends of the connection have loopback addresses. The caller's alone says nothing:
// Envoy passes connections of others on from 127.0.0.6.
func fromLoopback(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	to, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return err == nil && from.Addr().Unmap().IsLoopback() && ok && to.IP.IsLoopback()
}
