package holders

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

func (r *Registry) register(registerer prometheus.Registerer) {
	if registerer == nil {
		return
	}
	f := promauto.With(registerer)
	gauge := func(name, help string, value func() int) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	current := r.cfg.Current
	if current == nil {
		current = func() (uint64, uint64) { return 0, 0 }
	}
	gauge("fairlead_ca_holders", "Holders of unexpired certificates.", func() int { return r.Counts(0, 0).Total })
	gauge("fairlead_ca_holders_behind", "Holders that have not acknowledged the current trust bundle.", func() int {
		counts := r.Counts(current())
		return counts.Total - counts.Acknowledged
	})
	gauge("fairlead_ca_holders_journal_bytes", "Size of the journal of certificates.", func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return int(r.journal.size)
	})
	gauge("fairlead_ca_journal_failing", "1 while the journal of certificates is not written.", func() int {
		if r.Problem() != nil {
			return 1
		}
		return 0
	})
	f.NewCounterFunc(prometheus.CounterOpts{
		Name: "fairlead_ca_holders_journal_failures_total", Help: "Times that the journal of certificates could no longer be written.",
	}, func() float64 {
		r.mu.Lock()
		defer r.mu.Unlock()
		return float64(r.journal.failures)
	})
}
