package lastgood

import (
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label "reason".
const (
	reasonCorrupt    = "corrupt"
	reasonForeign    = "foreign"
	reasonOld        = "old"
	reasonUnreadable = "unreadable"
)

func reasonOf(err error) string {
	switch {
	case errors.Is(err, ErrCorrupt):
		return reasonCorrupt
	case errors.Is(err, ErrForeign):
		return reasonForeign
	case errors.Is(err, ErrOld):
		return reasonOld
	default:
		return reasonUnreadable
	}
}

type metrics struct {
	bytes, sealed prometheus.Gauge
	failures      prometheus.Counter
	refusals      *prometheus.CounterVec
	// failing says that the last write failed, which was logged.
	failing atomic.Bool
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_node_agent_last_good_bytes",
			Help: "Size of the sealed configuration that this agent has written, 0 before the first.",
		}),
		sealed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_node_agent_last_good_timestamp_seconds",
			Help: "When the sealed configuration was written, in seconds since 1970, 0 before the first.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_node_agent_last_good_write_failures_total",
			Help: "Attempts to write the sealed configuration that failed.",
		}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_node_agent_last_good_refusals_total",
			Help: "Sealed configurations that were found and not used, by reason: corrupt, foreign, old or unreadable.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{reasonCorrupt, reasonForeign, reasonOld, reasonUnreadable} {
		m.refusals.WithLabelValues(reason)
	}
	for _, c := range []prometheus.Collector{m.bytes, m.sealed, m.failures, m.refusals} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
