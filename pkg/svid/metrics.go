package svid

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	expiry             prometheus.Gauge
	renewals, failures prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		expiry: f.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_svid_expiry_timestamp_seconds",
			Help: "When the program's own certificate expires, in Unix time; 0 until one has been issued.",
		}),
		renewals: f.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_svid_renewals_total",
			Help: "Certificates obtained from the CA, the first one included.",
		}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_svid_renewal_failures_total",
			Help: "Attempts to obtain a certificate that failed.",
		}),
	}
}
