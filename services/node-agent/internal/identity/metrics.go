package identity

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/node-agent/internal/sds"
)

// expiry collects how long certificates are valid yet, under the name that Istio's agent gives it. Run reads them when
// they change and not when metrics are asked for, because code that runs once a minute keeps pages of the program in
// memory.
type expiry struct {
	source tlsconf.Source
	clock  clock.Clock
	desc   *prometheus.Desc

	mu sync.Mutex
	// ends are when the secrets end, by name.
	ends map[string]time.Time
}

// register registers the metrics of the identity, and returns what follows it for them.
func register(reg prometheus.Registerer, source tlsconf.Source, kind Kind, c clock.Clock) *expiry {
	chosen := promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{
		Name: "fairlead_node_agent_identity_source",
		Help: "1 for the source of the workload's certificate: socket, files or ca.",
	}, []string{"source"})
	for _, k := range []Kind{Socket, Files, CA} {
		chosen.WithLabelValues(string(k)).Set(map[bool]float64{true: 1}[k == kind])
	}
	e := &expiry{source: source, clock: clock.Or(c), desc: prometheus.NewDesc(
		"istio_agent_cert_expiry_seconds", "Seconds until a certificate that Envoy holds expires; negative once it has.",
		[]string{"resource_name"}, nil,
	)}
	reg.MustRegister(e)
	return e
}

// Run follows the source until ctx ends.
func (e *expiry) Run(ctx context.Context) error {
	for {
		changed := e.source.Changed()
		e.read()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// read keeps when the certificate ends, and the root that ends first.
func (e *expiry) read() {
	ends := map[string]time.Time{}
	if m, err := e.source.Current(); err == nil {
		if m.Certificate != nil {
			ends[sds.Default] = m.NotAfter
		}
		roots, _ := tlsconf.ParseAuthorities(m.RootsPEM) // they have been parsed before
		for _, r := range roots {
			if end, ok := ends[sds.RootCA]; !ok || r.NotAfter.Before(end) {
				ends[sds.RootCA] = r.NotAfter
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ends = ends
}

// Describe implements prometheus.Collector.
func (e *expiry) Describe(out chan<- *prometheus.Desc) { out <- e.desc }

// Collect implements prometheus.Collector.
func (e *expiry) Collect(out chan<- prometheus.Metric) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	for name, end := range e.ends {
		out <- prometheus.MustNewConstMetric(e.desc, prometheus.GaugeValue, end.Sub(now).Seconds(), name)
	}
}
