package gateways

import "github.com/prometheus/client_golang/prometheus"

// Results of a look at a Gateway.
const (
	resultOK      = "ok"
	resultRefused = "refused"
	resultForeign = "foreign"
	resultFailed  = "failed"
)

var results = []string{resultOK, resultRefused, resultForeign, resultFailed}

// metrics of the process.
type metrics struct {
	leader     prometheus.Gauge
	gateways   *prometheus.GaugeVec
	reconciles *prometheus.CounterVec
	writes     *prometheus.CounterVec
	repairs    prometheus.Counter
	watchFails prometheus.Counter
	waiting    prometheus.Gauge
	valuesFail prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_gateways_leader",
			Help: "1 while this replica holds the lease, and makes what Gateways need."}),
		gateways: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fairlead_gateways_gateways",
			Help: "Gateways that this replica deploys, by what became of the last look at them: ok, refused (the Gateway or a ConfigMap has to " +
				"change), foreign (an object of another owner is in the way), failed (it is tried again)."}, []string{"result"}),
		reconciles: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairlead_gateways_reconciles_total",
			Help: "Comparisons of a Gateway with its objects, by the same results."}, []string{"result"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairlead_gateways_writes_total",
			Help: "Objects of Gateways that were written, by verb: apply, delete."}, []string{"verb"}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_gateways_repaired_objects_total",
			Help: "Objects that were changed or deleted by others, and made again."}),
		watchFails: prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_gateways_watch_failures_total",
			Help: "Lists and watches that the API server refused or broke off with an error; kinds that a cluster does not have are none."}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_gateways_waiting",
			Help: "Gateways that wait to be compared with their objects."}),
		valuesFail: prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_gateways_values_stale",
			Help: "1 while the file with the installation's values cannot be used, and the last good values stay in force."}),
	}
	for _, result := range results {
		m.gateways.WithLabelValues(result)
		m.reconciles.WithLabelValues(result)
	}
	m.writes.WithLabelValues(verbApply)
	m.writes.WithLabelValues(verbDelete)
	registry.MustRegister(m.leader, m.gateways, m.reconciles, m.writes, m.repairs, m.watchFails, m.waiting, m.valuesFail)
	return m
}

const (
	verbApply  = "apply"
	verbDelete = "delete"
)
