// Package status has the handlers that the agent's status port (15020) serves besides those of pkg/ops, under the paths
// of Istio's agent: Ready answers /healthz/ready, and Metrics answers /stats/prometheus with Envoy's metrics and the
// agent's. Package app registers both.
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
	// maxEnvoyMetrics bounds the part of a scrape that comes from Envoy.
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

// envoy is the client of Envoy's admin interface; *envoy.Admin implements it.
type envoy interface {
	Request(ctx context.Context, method, path string) (io.ReadCloser, error)
}

// Metrics answers scrapes with Envoy's metrics followed by the agent's. If Envoy does not answer, the response has the
// agent's alone, and failures counts the scrape.
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

// ServeHTTP copies Envoy's metrics as a stream, since they can be tens of megabytes.
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
