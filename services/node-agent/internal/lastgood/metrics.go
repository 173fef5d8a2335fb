package lastgood

import (
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/pkg/telemetry"
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

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		bytes: f.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_node_agent_last_good_bytes",
			Help: "Size of the sealed configuration that this agent has written, 0 before the first.",
		}),
		sealed: f.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_node_agent_last_good_timestamp_seconds",
			Help: "When the sealed configuration was written, in seconds since 1970, 0 before the first.",
		}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_node_agent_last_good_write_failures_total",
			Help: "Attempts to write the sealed configuration that failed.",
		}),
		refusals: telemetry.CounterVec(reg, prometheus.CounterOpts{
			Name: "fairlead_node_agent_last_good_refusals_total",
			Help: "Sealed configurations that were found and not used, by reason: corrupt, foreign, old or unreadable.",
		}, "reason", reasonCorrupt, reasonForeign, reasonOld, reasonUnreadable),
	}
}
