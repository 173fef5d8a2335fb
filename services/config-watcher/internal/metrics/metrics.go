// Package metrics registers config-watcher's Prometheus metrics: Metrics observes the pipeline and the fan-out, and
// Collect reads State on every scrape.
package metrics

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/consul"
	"fairlead.dev/services/config-watcher/internal/source/declared"
	"fairlead.dev/services/config-watcher/internal/source/remote"
)

const namespace = "fairlead_config_watcher"

// Watchers also receives the subscribers that Metrics counts; the fleet table implements it.
type Watchers interface {
	Subscribed(instance string)
	Unsubscribed(instance string)
}

// State is what a scrape reads.
type State struct {
	Sources []source.Source
	// Remotes are the remote clusters; nil if there can be none.
	Remotes *remote.Clusters
	// Registries are those in Consul; nil if nothing can declare any.
	Registries *consul.Registries
	// Declared are the sources of the mesh configuration.
	Declared  *declared.Sources
	Conflicts func() int
	Pending   func() int
	Revisions *revision.Log
	Fleet     func() (proxies, reporters int)
	// Refused counts writes that the store's directory refused.
	Refused func() uint64
	// Unsaved returns why the sources' last good state is not on disk; nil if it is.
	Unsaved func() error
}

// Metrics observes the pipeline and the fan-out.
type Metrics struct {
	watchers Watchers

	build       prometheus.Histogram
	delay       prometheus.Histogram
	changed     prometheus.Counter
	failures    prometheus.Counter
	subscribers prometheus.Gauge
	sentItems   prometheus.Counter
	sentBytes   prometheus.Counter
	sentCount   prometheus.Counter
	acks        prometheus.Counter
}

// Collect registers the metrics that a scrape reads from state.
func Collect(reg prometheus.Registerer, state State) { reg.MustRegister(newCollector(state)) }

// New registers the metrics of what the pipeline and the fan-out do. watchers may be nil.
func New(reg prometheus.Registerer, watchers Watchers) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	}
	m := &Metrics{
		watchers: watchers,
		build: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: "revision_build_seconds",
			Help: "Time to normalise the gathered changes and commit a revision.", Buckets: prometheus.ExponentialBuckets(0.0001, 3, 11)}),
		// A bound at 1 s, which the objective names.
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: "revision_delay_seconds",
			Help:    "Time from the arrival of the first change of a revision until the revision was committed.",
			Buckets: prometheus.ExponentialBuckets(1.0/4096, 4, 9)}),
		changed:  counter("changed_resources_total", "Resources upserted and removed by all revisions."),
		failures: counter("normalise_failures_total", "Objects that could not be normalised although they were valid."),
		subscribers: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "subscribers",
			Help: "Open Watch streams."}),
		sentItems: counter("sent_resources_total", "Resources and removals sent to subscribers."),
		sentBytes: counter("sent_bytes_total", "Encoded bytes of revisions sent to subscribers."),
		sentCount: counter("sent_revisions_total", "Revisions sent to subscribers."),
		acks:      counter("acknowledged_revisions_total", "Revisions that subscribers have taken over."),
	}
	reg.MustRegister(m.build, m.delay, m.changed, m.failures, m.subscribers, m.sentItems, m.sentBytes, m.sentCount, m.acks)
	return m
}

// Committed implements pipeline.Observer.
func (m *Metrics) Committed(_ *revision.Snapshot, d normalise.Delta, took, delay time.Duration) {
	m.build.Observe(took.Seconds())
	m.delay.Observe(delay.Seconds())
	m.changed.Add(float64(len(d.Upserts) + len(d.Removed)))
}

// Failed implements pipeline.Observer.
func (m *Metrics) Failed(error) { m.failures.Inc() }

// Subscribed implements fanout.Observer.
func (m *Metrics) Subscribed(instance string) {
	m.subscribers.Inc()
	if m.watchers != nil {
		m.watchers.Subscribed(instance)
	}
}

// Unsubscribed implements fanout.Observer.
func (m *Metrics) Unsubscribed(instance string) {
	m.subscribers.Dec()
	if m.watchers != nil {
		m.watchers.Unsubscribed(instance)
	}
}

// Sent implements fanout.Observer.
func (m *Metrics) Sent(_ *configv1.Revision, resources, bytes int) {
	m.sentCount.Inc()
	m.sentItems.Add(float64(resources))
	m.sentBytes.Add(float64(bytes))
}

// Acked implements fanout.Observer.
func (m *Metrics) Acked(string, uint64) { m.acks.Inc() }

// collector reads State on every scrape.
type collector struct {
	state State

	objects, problems, synced, degraded     *prometheus.Desc
	conflicts, pending, resources, sequence *prometheus.Desc
	proxies, reporters                      *prometheus.Desc
	lastGood, held, alarm, refused, unsaved *prometheus.Desc
	staying, unread, withheld               *prometheus.Desc
	remotes, registries, declared           *prometheus.Desc
	followed, watched, polled, asked        *prometheus.Desc

	kindObjects, kindWatches, kindEvents, kindRestarts, kindDegraded *prometheus.Desc
}

func newCollector(s State) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
	}
	return &collector{
		state:     s,
		objects:   d("source_objects", "Objects that a source delivers.", "source"),
		problems:  d("source_problems", "Objects of a source that were refused.", "source"),
		synced:    d("source_synced", "1 once a source has read and delivered everything that existed at the start.", "source"),
		degraded:  d("source_degraded", "1 while a source cannot be read; its last-known objects stay.", "source"),
		conflicts: d("source_conflicts", "Objects that more than one source delivers, or a source has in two files."),
		pending:   d("pending_changes", "Changes that no revision contains yet."),
		resources: d("resources", "Resources of the newest revision.", "kind"),
		sequence:  d("revision_sequence", "Sequence of the newest revision; 0 before the first."),
		proxies:   d("proxies", "Proxies that xds-servers report as connected."),
		reporters: d("reporters", "xds-servers with an open report stream."),
		lastGood: d("source_last_good",
			"1 while a source serves the state that an earlier run has saved, because it has not been read since the start.", "source"),
		held:    d("source_held_closed", "Broken security objects without a good version, whose workloads are held closed.", "source"),
		staying: d("source_staying", "Objects of a source that stay although their file is gone, empty or cut off.", "source"),
		withheld: d("source_withheld",
			"Objects of a source that stay although a reading lacked them, because they are many, until a second one lacks them too.", "source"),
		unread: d("source_unread", "Objects of a source whose kinds the mesh does not read.", "source"),

		registries: d("registries", "Declarations of registries in Consul, by state: of a registry that is away, the last-known instances stay.",
			"state"),
		followed: d("registry_followed_timestamp_seconds",
			"When a registry in Consul was last known to be followed, with all that was read of it complete; 0 before the first time.", "source"),
		watched: d("registry_watches", "Services of a registry in Consul that are watched.", "source"),
		polled:  d("registry_polled", "Services of a registry in Consul that are read in turn, for want of a watch.", "source"),
		asked:   d("registry_requests_total", "Requests that were made to a registry in Consul.", "source"),
		declared: d("config_sources", "Servers and directories of meshConfig.configSources, by state: of one that is away, the last objects "+
			"stay.", "state"),
		remotes: d("remote_clusters", "Entries of Secrets that name remote clusters, by state: of a cluster that is away, the last-known "+
			"endpoints stay.", "state"),

		kindObjects: d("source_kind_objects", "Objects of a kind that a source delivers.", "source", "kind"),
		kindWatches: d("source_kind_watches",
			"Watches of a kind that a source has open at an API server; subscribers of config-watcher add none.", "source", "kind"),
		kindEvents:   d("source_kind_events_total", "Changes of objects of a kind that a source has delivered.", "source", "kind"),
		kindRestarts: d("source_kind_watch_restarts_total", "Watches of a kind that ended and were opened again.", "source", "kind"),
		kindDegraded: d("source_kind_degraded", "1 while a kind, or one of its objects, cannot be read; its last known objects stay.", "source",
			"kind"),

		alarm:   d("store_alarm", "1 while the store takes no writes because its directory cannot be written."),
		refused: d("store_refused_writes_total", "Writes and deletions that the store's directory did not take."),
		unsaved: d("last_good_unsaved", "1 while the last good state of the sources cannot be saved in --state-dir."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.objects, c.problems, c.synced, c.degraded, c.conflicts, c.pending, c.resources, c.sequence,
		c.proxies, c.reporters, c.lastGood, c.held, c.alarm, c.refused, c.unsaved, c.staying, c.withheld, c.unread, c.remotes, c.registries,
		c.declared, c.followed, c.watched, c.polled, c.asked,
		c.kindObjects, c.kindWatches, c.kindEvents, c.kindRestarts, c.kindDegraded} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	alarm, twice := false, 0
	sources := c.state.Sources
	if c.state.Remotes != nil {
		sources = slices.Concat(sources, c.state.Remotes.Sources())
		counts := c.state.Remotes.Counts()
		for _, state := range remote.States {
			gauge(c.remotes, float64(counts[state]), string(state))
		}
	}
	if c.state.Registries != nil {
		sources = slices.Concat(sources, c.state.Registries.Sources())
		counts := c.state.Registries.Counts()
		for _, state := range consul.States {
			gauge(c.registries, float64(counts[state]), strings.ToLower(string(state)))
		}
		for _, r := range c.state.Registries.Running() {
			of, at := consul.Name+"/"+r.Name, 0.0
			if !r.SyncedAt.IsZero() {
				at = float64(r.SyncedAt.UnixMilli()) / 1000
			}
			gauge(c.followed, at, of)
			gauge(c.watched, float64(r.Watches), of)
			gauge(c.polled, float64(r.Polled), of)
			ch <- prometheus.MustNewConstMetric(c.asked, prometheus.CounterValue, float64(r.Requests), of)
		}
	}
	if c.state.Declared != nil {
		sources = slices.Concat(sources, c.state.Declared.Sources())
		counts := c.state.Declared.Counts()
		for _, state := range declared.States {
			gauge(c.declared, float64(counts[state]), string(state))
		}
	}
	for _, s := range sources {
		st := s.Status()
		alarm = alarm || st.Alarm != nil
		gauge(c.lastGood, number(!st.LastGood.IsZero()), s.Name())
		gauge(c.held, float64(st.Held), s.Name())
		twice += len(st.Duplicates)
		staying := 0
		for _, f := range st.Staying {
			staying += len(f.Objects)
		}
		gauge(c.staying, float64(staying), s.Name())
		gauge(c.withheld, float64(st.WithheldObjects()), s.Name())
		gauge(c.unread, float64(st.UnreadTotal), s.Name())
		gauge(c.objects, float64(st.Objects), s.Name())
		gauge(c.problems, float64(len(st.Problems)), s.Name())
		gauge(c.synced, number(st.Synced), s.Name())
		gauge(c.degraded, number(st.Degraded != nil), s.Name())
		for _, k := range st.Kinds {
			gauge(c.kindObjects, float64(k.Objects), s.Name(), k.Name)
			gauge(c.kindWatches, float64(k.Watches), s.Name(), k.Name)
			gauge(c.kindDegraded, number(k.Degraded != nil), s.Name(), k.Name)
			ch <- prometheus.MustNewConstMetric(c.kindEvents, prometheus.CounterValue, float64(k.Events), s.Name(), k.Name)
			ch <- prometheus.MustNewConstMetric(c.kindRestarts, prometheus.CounterValue, float64(k.Restarts), s.Name(), k.Name)
		}
	}
	gauge(c.alarm, number(alarm))
	ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(c.state.Refused()))
	gauge(c.unsaved, number(c.state.Unsaved() != nil))
	gauge(c.conflicts, float64(c.state.Conflicts()+twice))
	gauge(c.pending, float64(c.state.Pending()))
	snapshot, _ := c.state.Revisions.Current()
	gauge(c.sequence, float64(snapshot.Sequence()))
	kinds := map[string]int{}
	if snapshot != nil {
		snapshot.Each(func(k resource.Key, _ *configv1.Resource) bool {
			kinds[k.Kind]++
			return true
		})
	}
	for kind, n := range kinds {
		gauge(c.resources, float64(n), kind)
	}
	proxies, reporters := c.state.Fleet()
	gauge(c.proxies, float64(proxies))
	gauge(c.reporters, float64(reporters))
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
