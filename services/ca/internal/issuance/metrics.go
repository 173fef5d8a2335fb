package issuance

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/telemetry"
	"fairlead.dev/services/ca/internal/rejection"
)

// Metrics counts decisions on certificate requests, for Prometheus and for /debug/issued.
type Metrics struct {
	issued   *prometheus.CounterVec
	refused  *prometheus.CounterVec
	duration *prometheus.HistogramVec
	waited   prometheus.Histogram
	tally    *tally
}

// Loader reports the load of the admission gate.
type Loader interface{ Load() (working, waiting int) }

// NewMetrics registers the metrics, with every label value, so that rates are right from the first event.
func NewMetrics(registry prometheus.Registerer, load Loader) *Metrics {
	f := promauto.With(registry)
	m := &Metrics{
		tally: newTally(),
		issued: telemetry.CounterVec(registry, prometheus.CounterOpts{
			Name: "fairlead_ca_certificates_issued_total", Help: "Workload certificates issued, by how the caller was authenticated.",
		}, "method", auth.MethodJWT, auth.MethodMTLS),
		refused: telemetry.CounterVec(registry, prometheus.CounterOpts{
			Name: "fairlead_ca_requests_refused_total", Help: "Certificate requests refused, by reason.",
		}, "reason", rejection.Reasons()...),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fairlead_ca_request_duration_seconds", Help: "Time to decide a certificate request, waiting included.",
			Buckets: prometheus.ExponentialBuckets(1.0/4096, 2, 14), // one bound is 1 s, which the objective names
		}, []string{"decision"}),
		waited: f.NewHistogram(prometheus.HistogramOpts{
			Name: "fairlead_ca_queue_wait_seconds", Help: "Time that admitted requests waited for a worker.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}),
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fairlead_ca_workers_busy", Help: "Requests that are being worked on.",
	}, func() float64 { n, _ := load.Load(); return float64(n) })
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fairlead_ca_queue_length", Help: "Requests that wait for a worker.",
	}, func() float64 { _, n := load.Load(); return float64(n) })
	for _, decision := range []string{"issued", "refused"} {
		m.duration.WithLabelValues(decision)
	}
	return m
}

// Refused counts a rejection. Package app calls it for callers that could not be authenticated.
func (m *Metrics) Refused(reason rejection.Reason) {
	m.refused.WithLabelValues(string(reason)).Inc()
	m.tally.refused(reason)
}

// Counts returns the decisions so far.
func (m *Metrics) Counts() Counts { return m.tally.counts() }

func (m *Metrics) issuedTo(method string, at time.Time, took time.Duration) {
	m.issued.WithLabelValues(method).Inc()
	m.duration.WithLabelValues("issued").Observe(took.Seconds())
	m.tally.issued(method, at)
}
