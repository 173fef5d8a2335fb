package relay

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/pkg/telemetry"
)

// Values of the label "by".
const (
	endEnvoy  = "envoy"
	endServer = "xds_server"
)

type counters struct{ messages, bytes prometheus.Counter }

type metrics struct {
	streams             prometheus.Gauge
	standIns            prometheus.Gauge
	ends                *prometheus.CounterVec
	dialFailures        prometheus.Counter
	requests, responses *counters
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	messages := f.NewCounterVec(prometheus.CounterOpts{
		Name: "fairlead_node_agent_relay_messages_total",
		Help: "xDS messages forwarded, by direction: request (from Envoy) or response.",
	}, []string{"direction"})
	bytes := f.NewCounterVec(prometheus.CounterOpts{
		Name: "fairlead_node_agent_relay_bytes_total",
		Help: "Bytes of xDS messages forwarded, by direction: request (from Envoy) or response.",
	}, []string{"direction"})
	of := func(direction string) *counters {
		return &counters{messages.WithLabelValues(direction), bytes.WithLabelValues(direction)}
	}
	return &metrics{
		requests: of("request"), responses: of("response"),
		streams: f.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_node_agent_relay_streams",
			Help: "ADS streams of Envoy that are connected to an xds-server.",
		}),
		standIns: f.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_node_agent_relay_standing_in",
			Help: "ADS streams of Envoy that are answered from the configuration that was accepted last, for lack of an xds-server.",
		}),
		ends: telemetry.CounterVec(reg, prometheus.CounterOpts{
			Name: "fairlead_node_agent_relay_stream_ends_total",
			Help: "ADS streams that have ended, by who ended them.",
		}, "by", endEnvoy, endServer),
		dialFailures: f.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_node_agent_relay_dial_failures_total",
			Help: "Attempts that found no xds-server to connect to.",
		}),
	}
}
