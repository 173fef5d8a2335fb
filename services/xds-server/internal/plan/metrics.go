package plan

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const namespace, subsystem = "fairlead", "xds_server"

type metrics struct {
	builds   *prometheus.HistogramVec
	failures *prometheus.CounterVec
	failing  prometheus.Gauge
	// unenforced counts those of failing that are *Unenforced.
	unenforced prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, e *Engine) *metrics {
	f := promauto.With(reg)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "classes", Help: "Classes of proxies held built.",
	}, func() float64 {
		e.mu.Lock()
		defer e.mu.Unlock()
		return float64(len(e.classes))
	})
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "stored_resources", Help: "Distinct resources held ready to send.",
	}, func() float64 {
		n, _ := e.store.Usage()
		return float64(n)
	})
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "stored_bytes", Help: "Bytes of the distinct resources held ready to send.",
	}, func() float64 {
		_, n := e.store.Usage()
		return float64(n)
	})
	return &metrics{
		builds: f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "build_duration_seconds",
			Help:    "Time to build one resource or one list of names, by xDS type and step.",
			Buckets: prometheus.ExponentialBuckets(10e-6, 4, 9),
		}, []string{"type", "step"}),
		failures: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "build_failures_total",
			Help: "Builds that failed and left the last good version in use, or had to leave out an EnvoyFilter, by xDS type.",
		}, []string{"type"}),
		failing: f.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "failing_resources",
			Help: "Resources whose newest version could not be built, or not with all EnvoyFilters.",
		}),
		unenforced: f.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "unenforced_resources",
			Help: "Those of the failing resources that do not do what an AuthorizationPolicy or RequestAuthentication says.",
		}),
	}
}

// typeMetrics are the metrics of one type.
type typeMetrics struct {
	names, build prometheus.Observer
	failures     prometheus.Counter
}

func (m *metrics) of(url string) typeMetrics {
	return typeMetrics{
		names: m.builds.WithLabelValues(shortType(url), "names"), build: m.builds.WithLabelValues(shortType(url), "build"),
		failures: m.failures.WithLabelValues(shortType(url)),
	}
}

// shortType is the message name of a type URL, for example "Cluster".
func shortType(url string) string { return url[strings.LastIndexByte(url, '.')+1:] }
