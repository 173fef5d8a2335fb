package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// CounterVec registers a counter with one label; reg may be nil. All values of the label are there from the start: a
// rate does not count the event with which a series begins.
func CounterVec[Value ~string](reg prometheus.Registerer, opts prometheus.CounterOpts, label string,
	values ...Value) *prometheus.CounterVec {
	counter := promauto.With(reg).NewCounterVec(opts, []string{label})
	for _, v := range values {
		counter.WithLabelValues(string(v))
	}
	return counter
}
