package configsource

import (
	"slices"

	"fairlead.dev/pkg/lanes"
	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// queue holds the revisions that were received and not applied, in two lanes. A revision that changes only endpoints
// and Workloads goes into the lane of endpoints, which keeps the newest state of each resource. Every other revision
// goes to the end of the ordered lane.
//
// So the snapshot that is applied may be a revision with endpoints that are newer. It is a state that config-watcher
// might have committed, had the endpoints changed earlier, because a revision overtakes only what cannot have had an
// effect on it: see subjects. If the ordered lane has one of the revision's subjects, the revision goes to the end of
// the ordered lane, which does not wait for proxies then (urgent).
type queue struct {
	endpoints changes
	ordered   []*revision
	// subjects of the revisions in ordered, with the number of times that they are there.
	subjects map[subject]int
	size     int // changes in ordered
	// urgent is true while a revision of endpoints is in ordered.
	urgent bool
	// revisions counts what the queue is made of, newest is the last of them. Of two that are merged both count.
	revisions, inEndpoints int
	newest                 position
}

// The ordered lane has at most maxOrdered revisions and about maxOrderedChanges changes; beyond, each new revision is
// merged with the last one. So the lane never has more than these and one state of every resource of the mesh.
const (
	maxOrdered        = 1024
	maxOrderedChanges = 32 << 10
)

// position is a revision and the stream that it came from, which is to acknowledge it.
type position struct {
	revision *configv1.Revision
	from     watchStream
}

// revision is one revision in the queue.
type revision struct {
	changes
	// endpoints are the changes that config-watcher has marked as those of revisions of endpoints, see
	// configv1.WatchResponse. They are empty once the revision is in a lane.
	endpoints []change
	at        position
	// before is the revision that was received before this one.
	before position
	// extra counts the revisions that were merged with this one.
	extra int
	// urgent is true if endpoints wait for the revision.
	urgent bool
}

// receive adds a chunk of the revision.
func (r *revision) receive(chunk *configv1.WatchResponse) {
	to := &r.List
	if chunk.GetEndpoints() {
		to = &r.endpoints
	}
	for _, k := range chunk.GetRemoved() {
		*to = append(*to, change{key: k})
	}
	for _, u := range chunk.GetUpserts() {
		*to = append(*to, change{key: u.GetKey(), upsert: u})
	}
}

func newQueue() queue { return queue{subjects: map[subject]int{}} }

// add queues a revision. If config-watcher has marked a part of it, that part overtakes the rest.
func (q *queue) add(r *revision) {
	r.before = q.newest
	q.newest = r.at
	q.revisions++
	if first := r.before.revision == nil; first || !onlyEndpoints(r.endpoints) {
		r.List, r.endpoints = append(r.List, r.endpoints...), nil
		if !first && onlyEndpoints(r.List) {
			r.List, r.endpoints = nil, r.List
		}
	}
	if len(r.List) == 0 && len(r.endpoints) > 0 && !q.mentions(r.endpoints) {
		q.inEndpoints++
		q.endpoints.merge(r.endpoints)
		return
	}
	q.count(r.List, 1)
	switch {
	case len(r.endpoints) == 0:
	case q.mentions(r.endpoints):
		r.urgent, q.urgent = true, true
		q.count(r.endpoints, 1)
		r.List = append(r.List, r.endpoints...)
	default:
		q.endpoints.merge(r.endpoints)
	}
	r.endpoints = nil
	if n := len(q.ordered); n >= maxOrdered || n > 1 && q.size >= maxOrderedChanges {
		last := q.ordered[n-1]
		q.count(last.List, -1)
		q.count(r.List, -1)
		last.merge(r.List)
		last.at, last.extra, last.urgent = r.at, last.extra+1, last.urgent || r.urgent
		q.count(last.List, 1)
		return
	}
	q.ordered = append(q.ordered, r)
}

// mentions reports whether the ordered lane has one of the subjects of changes.
func (q *queue) mentions(list []change) (found bool) {
	if len(q.subjects) == 0 {
		return false
	}
	if q.subjects[everything] > 0 {
		return true
	}
	for _, c := range list {
		c.subjects(func(s subject) { found = found || q.subjects[s] > 0 })
	}
	return found
}

// count adds n for each subject of changes that join or leave the ordered lane.
func (q *queue) count(list []change, n int) {
	q.size += n * len(list)
	for _, c := range list {
		c.subjects(func(s subject) {
			if q.subjects[s] += n; q.subjects[s] == 0 {
				delete(q.subjects, s)
			}
		})
	}
	if len(q.subjects) == 0 {
		q.subjects = map[subject]int{} // an emptied map keeps the memory of its largest size
	}
}

// takeEndpoints takes the whole lane of endpoints.
func (q *queue) takeEndpoints() *revision {
	taken := &revision{changes: q.endpoints}
	q.revisions -= q.inEndpoints
	q.endpoints, q.inEndpoints = changes{}, 0
	return taken
}

// position is the newest revision before everything in the ordered lane. With an empty lane of endpoints, everything up
// to it was taken.
func (q *queue) position() position {
	if len(q.ordered) > 0 {
		return q.ordered[0].before
	}
	return q.newest
}

// takeOrdered takes revisions from the front of the ordered lane: as many as have at most limit changes together, and
// one at least. The lane of endpoints is taken with them, before them: it has nothing that depends on them.
func (q *queue) takeOrdered(limit int) []*revision {
	taken := []*revision{q.takeEndpoints()}
	n, size := 0, 0
	for _, r := range q.ordered {
		if n > 0 && size+len(r.List) > limit {
			break
		}
		n, size = n+1, size+len(r.List)
		q.count(r.List, -1)
		q.revisions -= 1 + r.extra
		taken = append(taken, r)
	}
	q.ordered = slices.Delete(q.ordered, 0, n)
	q.urgent = q.urgent && slices.ContainsFunc(q.ordered, func(r *revision) bool { return r.urgent })
	return taken
}

// all lists what the queue has, in the order in which it may be applied.
func (q *queue) all() []*revision {
	return append([]*revision{{changes: q.endpoints}}, q.ordered...)
}

// changes are changed resources, each in its newest state.
type changes struct{ lanes.Latest[mesh.Key, change] }

// change is a resource that was upserted or, if upsert is nil, removed.
type change struct {
	key    *configv1.ResourceKey
	upsert *configv1.Resource
}

// merge adds newer changes.
func (c *changes) merge(newer []change) {
	c.Merge(func(ch change) mesh.Key { return mesh.KeyOf(ch.key) }, newer)
}

func (c *changes) upserts() (upserts []*configv1.Resource) {
	for _, ch := range c.List {
		if ch.upsert != nil {
			upserts = append(upserts, ch.upsert)
		}
	}
	return upserts
}

func (c *changes) removals() (removed []*configv1.ResourceKey) {
	for _, ch := range c.List {
		if ch.upsert == nil {
			removed = append(removed, ch.key)
		}
	}
	return removed
}

// only returns the changes of a kind.
func (c *changes) only(kind string) *changes {
	out := &changes{}
	out.List = lists.Filter(c.List, func(ch change) bool { return ch.key.GetKind() == kind })
	return out
}

func (c *changes) has(kind string) bool {
	return slices.ContainsFunc(c.List, func(ch change) bool { return ch.key.GetKind() == kind })
}

// onlyEndpoints reports whether the changes are those of a revision of endpoints (contract.IsEndpointKind).
func onlyEndpoints(list []change) bool {
	return len(list) > 0 && lists.All(list, func(ch change) bool { return contract.IsEndpointKind(ch.key.GetKind()) })
}

// subject is what a change is about, as far as endpoints may depend on it: a Service by its hostname, which is also
// that of its EndpointSets, a Workload by "<namespace>/<name>", or everything, for kinds that say how all Pods of a
// namespace or of the mesh become endpoints.
type subject struct{ kind, name string }

var everything = subject{kind: mesh.KindMeshConfig}

// subjects calls f for each subject of the change. An EndpointSet has the Workloads behind its endpoints as subjects
// too. Rules about traffic have none: they do not say which endpoints there are.
func (c change) subjects(f func(subject)) {
	switch key := c.key; key.GetKind() {
	case mesh.KindMeshConfig, mesh.KindNamespace:
		f(everything)
	case mesh.KindService:
		f(subject{mesh.KindService, contract.HostnameOf(key.GetName())})
	case mesh.KindEndpointSet:
		f(subject{mesh.KindService, contract.HostnameOf(key.GetName())})
		for _, e := range c.upsert.GetEndpointSet().GetEndpoints() {
			if e.GetWorkload() != "" {
				f(subject{mesh.KindWorkload, e.GetWorkload()})
			}
		}
	case mesh.KindWorkload:
		f(subject{mesh.KindWorkload, key.GetNamespace() + "/" + key.GetName()})
	}
}
