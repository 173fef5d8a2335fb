// Package status has what the agent's HTTP server on 15020 answers besides the
// usual: readiness as Istio's agent spells it, and Envoy's metrics together
// with the agent's own.
package status

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

const (
	// maxEnvoyMetrics bounds what is passed on of one scrape of Envoy.
	maxEnvoyMetrics = 256 << 20
	scrapeTimeout   = 10 * time.Second
	checkTimeout    = 2 * time.Second
)

// Ready answers 200 when check passes and 503 with its error otherwise.
func Ready(check func(context.Context) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := check(ctx); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "not ready: "+err.Error()+"\n")
			return
		}
		_, _ = io.WriteString(w, "ready\n")
	})
}

// envoy is the part of Envoy's admin interface that is used.
type envoy interface {
	Request(ctx context.Context, method, path string) (io.ReadCloser, error)
}

// Metrics answers scrapes with Envoy's metrics followed by the agent's. While
// Envoy does not answer there are only the agent's, and failures counts it.
type Metrics struct {
	envoy    envoy
	gatherer prometheus.Gatherer
	failures prometheus.Counter
	log      *slog.Logger
}

// NewMetrics makes the handler and registers its counter.
func NewMetrics(e envoy, registry *prometheus.Registry, log *slog.Logger) (*Metrics, error) {
	m := &Metrics{envoy: e, gatherer: registry, log: log, failures: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fairlead_node_agent_envoy_scrape_failures_total",
		Help: "Scrapes of /stats/prometheus in which Envoy's part is missing or cut short.",
	})}
	return m, registry.Register(m.failures)
}

// ServeHTTP streams: a proxy's metrics can be tens of megabytes.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
	defer cancel()
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	w.Header().Set("Content-Type", string(format))
	if err := m.copyEnvoy(ctx, w); err != nil {
		m.failures.Inc()
		m.log.Warn("Envoy's metrics are missing from a scrape", "error", err)
	}
	families, err := m.gatherer.Gather()
	if err != nil {
		m.log.Error("the agent's metrics cannot be gathered", "error", err)
	}
	encoder := expfmt.NewEncoder(w, format)
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			return // the scraper has gone
		}
	}
}

func (m *Metrics) copyEnvoy(ctx context.Context, w io.Writer) error {
	body, err := m.envoy.Request(ctx, http.MethodGet, "/stats/prometheus")
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(w, io.LimitReader(body, maxEnvoyMetrics))
	return err
}
