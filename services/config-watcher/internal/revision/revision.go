// Package revision keeps the numbered states of the normalised mesh. The pipeline commits each change to Log as a
// Snapshot; ConfigService.Watch (package fanout) reads the newest one and, with Between, the resources that changed.
package revision

import (
	"bytes"
	"sync"

	"github.com/tidwall/btree"
	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/notify"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// item is one resource of a snapshot.
type item struct {
	key      resource.Key
	resource *configv1.Resource
}

func less(a, b item) bool { return a.key.Compare(b.key) < 0 }

// Snapshot is one state of the mesh. It is immutable and safe for concurrent use; readers must not change resources.
type Snapshot struct {
	revision *configv1.Revision
	items    *btree.BTreeG[item]
	sum      resource.Sum
}

// Revision returns the snapshot's revision; the caller must not change it.
func (s *Snapshot) Revision() *configv1.Revision { return s.revision }

// Sequence is the revision's number; 0 for a nil snapshot.
func (s *Snapshot) Sequence() uint64 {
	if s == nil {
		return 0
	}
	return s.revision.Sequence
}

// Len counts the resources.
func (s *Snapshot) Len() int { return s.items.Len() }

// Get returns a resource; nil if there is none.
func (s *Snapshot) Get(k resource.Key) *configv1.Resource {
	if s == nil {
		return nil
	}
	it, _ := s.items.Get(item{key: k})
	return it.resource
}

// Each calls f for every resource in the order of keys until it returns false.
func (s *Snapshot) Each(f func(resource.Key, *configv1.Resource) bool) {
	s.items.Scan(func(it item) bool { return f(it.key, it.resource) })
}

// EachOf calls f for every resource of a kind in the order of keys until it returns false.
func (s *Snapshot) EachOf(kind string, f func(resource.Key, *configv1.Resource) bool) {
	s.items.Ascend(item{key: resource.Key{Kind: kind}}, func(it item) bool { return it.key.Kind == kind && f(it.key, it.resource) })
}

// EachIn calls f for every resource of a kind and namespace in the order of keys until it returns false.
func (s *Snapshot) EachIn(kind, namespace string, f func(resource.Key, *configv1.Resource) bool) {
	s.items.Ascend(item{key: resource.Key{Kind: kind, Namespace: namespace}}, func(it item) bool {
		return it.key.Kind == kind && it.key.Namespace == namespace && f(it.key, it.resource)
	})
}

// Difference turns one snapshot into another. Both lists are sorted by key.
type Difference struct {
	Upserts []*configv1.Resource
	Removed []resource.Key
	// configured are the keys that other revisions than those of endpoints have changed; nil if all are.
	configured map[resource.Key]struct{}
}

// Lanes divides the difference: endpoints is what only revisions of endpoints have changed (contract.IsEndpointKind).
func (d Difference) Lanes() (configuration, endpoints Difference) {
	if d.configured == nil {
		return d, Difference{}
	}
	configuration.configured = d.configured
	for _, r := range d.Upserts {
		part := &endpoints
		if _, ok := d.configured[resource.KeyOf(r.Key)]; ok {
			part = &configuration
		}
		part.Upserts = append(part.Upserts, r)
	}
	for _, k := range d.Removed {
		part := &endpoints
		if _, ok := d.configured[k]; ok {
			part = &configuration
		}
		part.Removed = append(part.Removed, k)
	}
	return configuration, endpoints
}

// Len is the number of resources in the difference.
func (d Difference) Len() int { return len(d.Upserts) + len(d.Removed) }

// Limits of the changed keys that Log remembers. For a subscriber further behind, Between compares whole snapshots.
const (
	keepRevisions = 4096
	keepKeys      = 200_000
)

// Log holds the newest snapshot and the keys changed by recent revisions. One writer commits, any number of readers
// follow.
type Log struct {
	epoch string
	clock clock.Clock

	mu      sync.Mutex
	current *Snapshot
	changed notify.Notifier
	// keys[i] are the keys changed by revision first+i.
	first uint64
	keys  [][]resource.Key
	total int
	// counter is nil if numbers are not kept in a file.
	counter *Counter
	failed  func(error)
}

// NewLog returns an empty log. epoch identifies this run of the process.
func NewLog(epoch string, c clock.Clock) *Log {
	return &Log{epoch: epoch, clock: c, first: 1}
}

// Continue makes the log count on from the counter's number and store each new one there. It is called before the first
// Commit. failed is called when a number could not be stored; the revision holds nevertheless.
func (l *Log) Continue(c *Counter, failed func(error)) {
	l.counter, l.failed, l.first = c, failed, c.Last()+1
}

// Epoch returns the epoch of all revisions.
func (l *Log) Epoch() string { return l.epoch }

// Commit closes the next revision. An empty change makes one too. The writer calls it; readers do not wait while the
// revision is made and its number stored.
func (l *Log) Commit(upserts []*configv1.Resource, removed []resource.Key, traceParent string) *Snapshot {
	next := &Snapshot{}
	if l.current == nil {
		next.items = btree.NewBTreeG(less)
	} else {
		next.items = l.current.items.Copy()
		next.sum = l.current.sum
	}
	keys := make([]resource.Key, 0, len(upserts)+len(removed))
	for _, r := range upserts {
		k := resource.KeyOf(r.Key)
		if old, replaced := next.items.Set(item{k, r}); replaced {
			next.sum.Remove(k, old.resource.Hash)
		}
		next.sum.Add(k, r.Hash)
		keys = append(keys, k)
	}
	for _, k := range removed {
		if old, ok := next.items.Delete(item{key: k}); ok {
			next.sum.Remove(k, old.resource.Hash)
		}
		keys = append(keys, k)
	}
	next.revision = &configv1.Revision{
		Epoch: l.epoch, Sequence: l.next(), StateHash: next.sum.Bytes(), TraceParent: traceParent, CommittedAt: timestamppb.New(l.clock.Now()),
	}
	if l.counter != nil {
		if err := l.counter.store(next.Sequence()); err != nil {
			l.failed(err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys = append(l.keys, keys)
	l.total += len(keys)
	for len(l.keys) > 1 && (len(l.keys) > keepRevisions || l.total > keepKeys) {
		l.total -= len(l.keys[0])
		l.keys[0] = nil
		l.keys = l.keys[1:]
		l.first++
	}
	l.current = next
	l.changed.Notify()
	return next
}

// next is the number of the next revision. The writer calls it.
func (l *Log) next() uint64 {
	if l.current == nil {
		return l.first
	}
	return l.current.Sequence() + 1
}

// Current returns the newest snapshot, nil before the first, and a channel that closes when a newer one exists.
func (l *Log) Current() (*Snapshot, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current, l.changed.Changed()
}

// Between returns the difference from one snapshot of this log to a later one, in time proportional to what changed.
func (l *Log) Between(from, to *Snapshot) Difference {
	l.mu.Lock()
	var recent [][]resource.Key
	known := from.Sequence()+1 >= l.first
	if known {
		recent = l.keys[from.Sequence()+1-l.first : to.Sequence()+1-l.first]
	}
	l.mu.Unlock()
	if !known {
		return from.compare(to)
	}
	d := Difference{configured: map[resource.Key]struct{}{}}
	touched := btree.NewBTreeG(resourceLess)
	for _, keys := range recent {
		endpoints := lists.All(keys, func(k resource.Key) bool { return contract.IsEndpointKind(k.Kind) })
		for _, k := range keys {
			if touched.Set(k); !endpoints {
				d.configured[k] = struct{}{}
			}
		}
	}
	touched.Scan(func(k resource.Key) bool {
		d.add(k, from.Get(k), to.Get(k))
		return true
	})
	return d
}

func resourceLess(a, b resource.Key) bool { return a.Compare(b) < 0 }

func (d *Difference) add(k resource.Key, before, after *configv1.Resource) {
	switch {
	case after == nil && before != nil:
		d.Removed = append(d.Removed, k)
	case after != nil && (before == nil || !bytes.Equal(before.Hash, after.Hash)):
		d.Upserts = append(d.Upserts, after)
	}
}

// compare returns the difference by reading both snapshots as a whole.
func (s *Snapshot) compare(to *Snapshot) Difference {
	var d Difference
	to.Each(func(k resource.Key, r *configv1.Resource) bool {
		d.add(k, s.Get(k), r)
		return true
	})
	s.Each(func(k resource.Key, r *configv1.Resource) bool {
		if to.Get(k) == nil {
			d.Removed = append(d.Removed, k)
		}
		return true
	})
	return d
}
