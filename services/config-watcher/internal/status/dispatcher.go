package status

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/pkg/fairshare"
	"fairlead.dev/services/config-watcher/internal/object"
)

const (
	// maxStatuses bounds the objects that one writer keeps a status of.
	maxStatuses = 200_000
	// writeTimeout bounds one write, the wait for the writer's rate included.
	writeTimeout = 30 * time.Second
	// firstRetry and lastRetry bound the pause after a failed write.
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// DispatcherConfig are the parts of a Dispatcher. All fields but Unable are required.
type DispatcherConfig struct {
	// Name of the source that is written to, for logs and metrics.
	Name   string
	Writer Writer
	// Workers is the number of writes at the same time, each of another object.
	Workers int
	// Unable says why nothing at all can be written by this replica; nil if it can.
	Unable  func() error
	Metrics *Metrics
	Log     *slog.Logger
}

// Dispatcher keeps the newest status of each object of a source and hands those that are new to a Writer. A status that
// is replaced before it was written is never written, and namespaces take turns. It is safe for concurrent use.
type Dispatcher struct {
	cfg DispatcherConfig

	mu       sync.Mutex
	statuses map[object.Key]entryToWrite
	queue    workqueue.TypedRateLimitingInterface[object.Key] // nil while Run does not run
	failing  map[object.Key]error
}

type entryToWrite struct {
	to     Target
	status *Status
}

// NewDispatcher returns a dispatcher; it writes while Run runs.
func NewDispatcher(cfg DispatcherConfig) *Dispatcher {
	return &Dispatcher{cfg: cfg, statuses: map[object.Key]entryToWrite{}, failing: map[object.Key]error{}}
}

// Put implements Sink.
func (d *Dispatcher) Put(to Target, s *Status) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.statuses[to.Key]; !known && len(d.statuses) >= maxStatuses {
		return false
	}
	d.statuses[to.Key] = entryToWrite{to, s}
	if d.queue != nil {
		d.queue.Forget(to.Key)
		d.queue.Add(to.Key)
	}
	return true
}

// Forget implements Sink.
func (d *Dispatcher) Forget(k object.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.statuses, k)
	d.cleared(k)
}

// Run writes until ctx ends. It begins with the statuses of all objects, since another replica may have written others.
func (d *Dispatcher) Run(ctx context.Context) error {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[object.Key](firstRetry, lastRetry)
	queue := fairshare.NewWorkQueue(limiter, func(k object.Key) string { return k.Namespace })
	d.mu.Lock()
	d.queue = queue
	for k := range d.statuses {
		queue.Add(k)
	}
	d.mu.Unlock()
	d.cfg.Metrics.active(d.cfg.Name, true)
	defer d.cfg.Metrics.active(d.cfg.Name, false)
	defer context.AfterFunc(ctx, queue.ShutDown)()
	defer func() {
		queue.ShutDown()
		d.mu.Lock()
		d.queue, d.failing = nil, map[object.Key]error{}
		d.mu.Unlock()
	}()
	var workers sync.WaitGroup
	for range d.cfg.Workers {
		workers.Go(func() {
			for {
				k, ended := queue.Get()
				if ended {
					return
				}
				d.write(ctx, queue, k)
				queue.Done(k)
			}
		})
	}
	workers.Wait()
	return nil
}

// write writes the newest status of an object. A failed write is repeated after a pause.
func (d *Dispatcher) write(ctx context.Context, queue workqueue.TypedRateLimitingInterface[object.Key], k object.Key) {
	d.mu.Lock()
	e, known := d.statuses[k]
	d.mu.Unlock()
	if !known || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	written, err := d.cfg.Writer.Write(ctx, e.to, e.status)
	result := "unchanged"
	switch {
	case errors.Is(err, ErrGone) || errors.Is(err, ErrOutdated):
		result, err = "outdated", nil
	case err != nil:
		result = "failed"
	case written:
		result = "written"
	}
	d.cfg.Metrics.writes.WithLabelValues(d.cfg.Name, result).Inc()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		queue.Forget(k)
		d.cleared(k)
		return
	}
	if d.statuses[k] == e {
		if len(d.failing) == 0 {
			d.cfg.Log.Warn("status of an object cannot be written, trying again", "source", d.cfg.Name, "object", k.String(), "error", err)
		}
		d.failing[k] = err
		queue.AddRateLimited(k)
	}
}

// cleared notes that the object's status need not be written any more. The caller holds d.mu.
func (d *Dispatcher) cleared(k object.Key) {
	if _, was := d.failing[k]; !was {
		return
	}
	if delete(d.failing, k); len(d.failing) == 0 {
		d.cfg.Log.Info("statuses are written again", "source", d.cfg.Name)
	}
}

// Failure implements Sink. It says for how many objects the status cannot be written, and why for one of them; nil if
// there is none.
func (d *Dispatcher) Failure() error {
	if d.cfg.Unable != nil {
		if err := d.cfg.Unable(); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var first object.Key
	for k := range d.failing {
		if first.Kind == "" || k.Compare(first) < 0 {
			first = k
		}
	}
	if first.Kind == "" {
		return nil
	}
	return &WriteError{Objects: len(d.failing), Object: first, Err: d.failing[first]}
}

// Queued counts the objects whose status waits to be written.
func (d *Dispatcher) Queued() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queue == nil {
		return 0
	}
	return d.queue.Len()
}

// Metrics are those of all dispatchers.
type Metrics struct {
	writes  *prometheus.CounterVec
	writing *prometheus.GaugeVec
	failing *prometheus.Desc
	queued  *prometheus.Desc

	mu          sync.Mutex
	dispatchers []*Dispatcher
}

const metricsNamespace = "fairlead_config_watcher"

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	name := func(s string) string { return prometheus.BuildFQName(metricsNamespace, "", s) }
	m := &Metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: name("status_writes_total"),
			Help: "Statuses of objects that were handed to a source, by result: written, unchanged, outdated (the object is gone or newer) or " +
				"failed."}, []string{"source", "result"}),
		writing: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name("status_writer"),
			Help: "1 while this replica writes the statuses of a source's objects: always for the store, for Kubernetes while it is the leader."},
			[]string{"source"}),
		failing: prometheus.NewDesc(name("status_unwritten"),
			"Objects of a source whose status cannot be written, for example because RBAC forbids it; it is tried again.", []string{"source"}, nil),
		queued: prometheus.NewDesc(name("status_queue"), "Objects of a source whose status waits to be written.", []string{"source"}, nil),
	}
	reg.MustRegister(m.writes, m.writing, m)
	return m
}

func (m *Metrics) active(name string, yes bool) {
	v := 0.0
	if yes {
		v = 1
	}
	m.writing.WithLabelValues(name).Set(v)
}

// Add shows a dispatcher in the metrics.
func (m *Metrics) Add(d *Dispatcher) {
	m.mu.Lock()
	m.dispatchers = append(m.dispatchers, d)
	m.mu.Unlock()
	m.active(d.cfg.Name, false)
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.failing
	ch <- m.queued
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.dispatchers {
		d.mu.Lock()
		failing := len(d.failing)
		d.mu.Unlock()
		ch <- prometheus.MustNewConstMetric(m.failing, prometheus.GaugeValue, float64(failing), d.cfg.Name)
		ch <- prometheus.MustNewConstMetric(m.queued, prometheus.GaugeValue, float64(d.Queued()), d.cfg.Name)
	}
}
