package nameserver

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Values of the label "from".
const (
	fromTable    = "table"
	fromCache    = "cache"
	fromUpstream = "upstream"
	fromNobody   = "none"
)

type metrics struct {
	requests *prometheus.CounterVec
	failures prometheus.Counter
	duration prometheus.Histogram
	names    prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_node_agent_dns_requests_total",
			Help: "DNS queries of the workload, by protocol and by the source of the answer: the name table, the cache, an upstream server, or " +
				"none if the query failed.",
		}, []string{"network", "from"}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_node_agent_dns_upstream_failures_total",
			Help: "DNS queries that no upstream server has answered.",
		}),
		duration: f.NewHistogram(prometheus.HistogramOpts{
			Name: "fairlead_node_agent_dns_upstream_duration_seconds", Buckets: []float64{.001, .005, .02, .1, .5, 2},
			Help: "How long upstream servers take to answer a DNS query.",
		}),
		names: f.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_node_agent_dns_names",
			Help: "Names in the name table.",
		}),
	}
	for _, network := range []string{networkUDP, networkTCP} {
		for _, from := range []string{fromTable, fromCache, fromUpstream, fromNobody} {
			m.requests.WithLabelValues(network, from)
		}
	}
	return m
}
