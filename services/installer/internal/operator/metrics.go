package operator

import "github.com/prometheus/client_golang/prometheus"

// metrics of an operator.
type metrics struct {
	leader     prometheus.Gauge
	reconciles *prometheus.CounterVec
	duration   prometheus.Histogram
	repairs    prometheus.Counter
	resources  *prometheus.GaugeVec
	watchFails prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_operator_leader",
			Help: "1 while this replica holds the lease, and reconciles."}),
		reconciles: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairlead_operator_reconciles_total",
			Help: "Comparisons of an IstioOperator with the cluster, by result: ok, refused (the resource has to change), failed (it is tried " +
				"again)."}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "fairlead_operator_reconcile_duration_seconds",
			Help: "Time of one comparison, with what was applied and waited for.", Buckets: []float64{.1, .5, 1, 2, 5, 10, 30, 60, 120, 300}}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_operator_repaired_objects_total",
			Help: "Objects that were changed or deleted by others, and made again as the IstioOperator says."}),
		resources: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fairlead_operator_resources",
			Help: "IstioOperators that this replica reconciles, by status."}, []string{"status"}),
		watchFails: prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_operator_watch_failures_total",
			Help: "Lists and watches that the API server refused or broke off with an error."}),
	}
	for _, result := range []string{resultOK, resultRefused, resultFailed} {
		m.reconciles.WithLabelValues(result)
	}
	for _, status := range statuses {
		m.resources.WithLabelValues(status)
	}
	registry.MustRegister(m.leader, m.reconciles, m.duration, m.repairs, m.resources, m.watchFails)
	return m
}

// Results of a comparison.
const (
	resultOK      = "ok"
	resultRefused = "refused"
	resultFailed  = "failed"
)
