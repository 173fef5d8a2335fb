package serve

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/services/xds-server/internal/serve/quota"
)

const namespace, subsystem = "fairlead", "xds_server"

type metrics struct {
	pushes, sentBytes, nacks         *prometheus.CounterVec
	ackSeconds                       *prometheus.HistogramVec
	applySeconds                     prometheus.Histogram
	revisions                        prometheus.Counter
	stalled, unordered, refusedHosts prometheus.Counter
	banned                           prometheus.Counter
	refused                          *prometheus.CounterVec

	mu    sync.Mutex
	types map[string]*typeMetrics
}

// typeMetrics are the metrics of one type, looked up once.
type typeMetrics struct {
	pushes, sentBytes, nacks prometheus.Counter
	ackSeconds               prometheus.Observer
}

// of returns the metrics of a type that some translator makes.
func (m *metrics) of(url string) *typeMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	if tm, ok := m.types[url]; ok {
		return tm
	}
	name := shortType(url)
	tm := &typeMetrics{
		pushes: m.pushes.WithLabelValues(name), sentBytes: m.sentBytes.WithLabelValues(name), nacks: m.nacks.WithLabelValues(name),
		ackSeconds: m.ackSeconds.WithLabelValues(name),
	}
	m.types[url] = tm
	return tm
}

func newMetrics(reg prometheus.Registerer, s *Server) *metrics {
	f := promauto.With(reg)
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	byType := func(name, help string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts(opts(name, help)), []string{"type"})
	}
	for mode, delta := range map[string]bool{"delta": true, "state_of_the_world": false} {
		o := prometheus.GaugeOpts(opts("streams", "Open ADS streams, by protocol variant."))
		o.ConstLabels = prometheus.Labels{"protocol": mode}
		f.NewGaugeFunc(o, func() float64 { return s.countStreams(func(st *stream) bool { return st.delta == delta }) })
	}
	f.NewGaugeFunc(prometheus.GaugeOpts(opts("streams_waiting", "Open ADS streams that wait for an acknowledgement or have changes queued.")),
		func() float64 { return s.countStreams((*stream).waiting) })
	f.NewGaugeFunc(prometheus.GaugeOpts(opts("unsent_bytes", "Bytes handed to gRPC that the network has not taken yet.")),
		func() float64 { return float64(s.unsent.InUse()) })
	f.NewGaugeFunc(prometheus.GaugeOpts(
		opts("names_bytes", "Bytes that the names take which proxies ask for and which their classes do not list.")),
		func() float64 { return float64(s.quotas.NamesBytes()) })
	f.NewGaugeFunc(prometheus.GaugeOpts(
		opts("agents_behind_trust_bundle", "Connected agents that ask for the trust bundle and have not acknowledged the newest generation.")),
		func() float64 { return float64(s.trust.Behind()) })
	refused := f.NewCounterVec(prometheus.CounterOpts(
		opts("refused_streams_total", "Streams ended because their identity uses too much, by budget.")), []string{"budget"})
	for _, b := range []quota.Budget{quota.BudgetStreams, quota.BudgetOpens, quota.BudgetClasses, quota.BudgetNames} {
		refused.WithLabelValues(string(b)) // a rate does not count the event with which a series begins
	}
	return &metrics{
		refused:   refused,
		types:     map[string]*typeMetrics{},
		pushes:    byType("pushes_total", "Responses sent, by xDS type."),
		sentBytes: byType("sent_bytes_total", "Bytes of resources sent, by xDS type."),
		nacks:     byType("nacks_total", "Responses that proxies rejected, by xDS type."),
		ackSeconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "ack_duration_seconds",
			Help:    "Time from sending a response to its acknowledgement, by xDS type.",
			Buckets: prometheus.ExponentialBuckets(1.0/2048, 4, 8), // one bound is 2 s, which the objective names
		}, []string{"type"}),
		applySeconds: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "apply_duration_seconds",
			Help: "Time to bring all classes to a revision and hand out the responses.", Buckets: prometheus.ExponentialBuckets(0.1e-3, 3, 11),
		}),
		revisions: counter("revisions_applied_total",
			"Times the classes were brought to a newer revision; revisions that arrive together count once."),
		stalled: counter("stalled_streams_total", "Streams closed because the client took no data."),
		banned:  counter("banned_streams_total", "Streams refused because their identity is banned."),
		refusedHosts: counter("refused_virtual_hosts_total",
			"Virtual hosts asked for on demand that were refused because the stream had asked for too many."),
		unordered: counter("order_timeouts_total", "Updates sent although what goes before them was not acknowledged in time."),
	}
}

func (s *Server) countStreams(is func(*stream) bool) float64 {
	n := 0
	for _, st := range s.all() {
		if is(st) {
			n++
		}
	}
	return float64(n)
}

// waiting reports whether a response is outstanding or waits to be sent.
func (st *stream) waiting() bool {
	st.lock()
	defer st.unlock()
	return st.client.Waiting()
}

// shortType is the message name of a type URL, such as "Cluster". Only served types come here, so that it is fit for a
// label.
func shortType(url string) string { return url[strings.LastIndexByte(url, '.')+1:] }
