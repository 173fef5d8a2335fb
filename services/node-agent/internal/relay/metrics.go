package relay

import (
	"github.com/prometheus/client_golang/prometheus"
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

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	messages := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fairlead_node_agent_relay_messages_total",
		Help: "xDS messages forwarded, by direction: request (from Envoy) or response.",
	}, []string{"direction"})
	bytes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fairlead_node_agent_relay_bytes_total",
		Help: "Bytes of xDS messages forwarded, by direction: request (from Envoy) or response.",
	}, []string{"direction"})
	m := &metrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_node_agent_relay_streams",
			Help: "ADS streams of Envoy that are connected to an xds-server.",
		}),
		standIns: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_node_agent_relay_standing_in",
			Help: "ADS streams of Envoy that are answered from the configuration that was accepted last, for lack of an xds-server.",
		}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_node_agent_relay_stream_ends_total",
			Help: "ADS streams that have ended, by who ended them.",
		}, []string{"by"}),
		dialFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_node_agent_relay_dial_failures_total",
			Help: "Attempts that found no xds-server to connect to.",
		}),
	}
	of := func(direction string) *counters {
		return &counters{messages.WithLabelValues(direction), bytes.WithLabelValues(direction)}
	}
	m.requests, m.responses = of("request"), of("response")
	m.ends.WithLabelValues(endEnvoy)
	m.ends.WithLabelValues(endServer)
	for _, c := range []prometheus.Collector{messages, bytes, m.streams, m.standIns, m.ends, m.dialFailures} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
