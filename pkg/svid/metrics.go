package svid

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	expiry             prometheus.Gauge
	renewals, failures prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_svid_expiry_timestamp_seconds",
			Help: "When the program's own certificate expires, in Unix time; 0 until one has been issued.",
		}),
		renewals: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_svid_renewals_total",
			Help: "Certificates obtained from the CA, the first one included.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_svid_renewal_failures_total",
			Help: "Attempts to obtain a certificate that failed.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	if err := errors.Join(reg.Register(m.expiry), reg.Register(m.renewals), reg.Register(m.failures)); err != nil {
		return nil, fmt.Errorf("svid: register metrics: %w", err)
	}
	return m, nil
}
