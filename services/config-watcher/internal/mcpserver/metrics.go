package mcpserver

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of a Server. The label kind is one that is served, or unknownKind.
type metrics struct {
	clients                 *prometheus.GaugeVec
	lists, bytes, rejected  *prometheus.CounterVec
	early, hostile, stopped prometheus.Counter
}

// unknownKind is the label of types that nobody knows.
const unknownKind = "unknown"

func newMetrics(registerer prometheus.Registerer) metrics {
	with := promauto.With(registerer)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: "fairlead_config_watcher_mcp_" + name, Help: help}, labels)
	}
	ended := counter("refused_streams_total", "Streams of MCP that were ended: early (before the first revision), request (for too much, or "+
		"without a type), stopping.", "reason")
	return metrics{
		clients: with.NewGaugeVec(prometheus.GaugeOpts{Name: "fairlead_config_watcher_mcp_clients",
			Help: "Open streams of MCP, by protocol: sotw (each list is whole) or delta."}, []string{"protocol"}),
		lists:    counter("sent_lists_total", "Messages that were sent to clients of MCP, by kind of objects.", "kind"),
		bytes:    counter("sent_bytes_total", "Bytes of objects in these messages.", "kind"),
		rejected: counter("rejected_lists_total", "Messages that clients of MCP have rejected.", "kind"),
		early:    ended.WithLabelValues("early"), hostile: ended.WithLabelValues("request"), stopped: ended.WithLabelValues("stopping"),
	}
}

// sent counts a message.
func (m metrics) sent(kind string, bytes int) {
	m.lists.WithLabelValues(kind).Inc()
	m.bytes.WithLabelValues(kind).Add(float64(bytes))
}
