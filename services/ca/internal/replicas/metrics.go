package replicas

import "github.com/prometheus/client_golang/prometheus"

// clocks makes a metric of the clocks of the other replicas.
type clocks struct {
	set    *Set
	offset *prometheus.Desc
}

func newClocks(s *Set) clocks {
	return clocks{set: s, offset: prometheus.NewDesc("fairlead_ca_clock_offset_seconds",
		"How far the clock of another replica of the ca is ahead of this one's.", []string{"with"}, nil)}
}

// Describe implements prometheus.Collector.
func (c clocks) Describe(out chan<- *prometheus.Desc) { out <- c.offset }

// Collect implements prometheus.Collector.
func (c clocks) Collect(out chan<- prometheus.Metric) {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	for _, m := range c.set.members.sorted() {
		if m.connected {
			out <- prometheus.MustNewConstMetric(c.offset, prometheus.GaugeValue, m.ahead.Seconds(), m.name)
		}
	}
}
