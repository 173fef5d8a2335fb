// Package aggregate merges the objects of all sources into one set. Sources call its handler with changed objects, and
// it passes changes of the merged set on to its Sink (the ban table, then the pipeline).
package aggregate

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// Sink receives the changes of the merged set, in order.
type Sink func(ctx context.Context, changes []normalise.Change)

// Aggregate decides which source's version of an object is in force: the oldest, see precedes. It is safe for
// concurrent use and calls the sink from one goroutine at a time.
type Aggregate struct {
	log    *slog.Logger
	sink   Sink
	pinned string
	rank   map[string]int

	mu      sync.Mutex
	objects map[object.Key][]*object.Object // ordered by precedes; the first is in force
	shadows map[object.Key]struct{}
	// declared are the sources that come after all others, by their place; withheld is the source whose objects of
	// Istio's kinds do not count, and those objects.
	declared map[string]int
	withheld string
	aside    map[object.Key]*object.Object
}

// New registers the aggregate as every source's handler. The versions of the source called pinned come before all
// others; it may be empty.
func New(log *slog.Logger, sink Sink, pinned string, sources ...source.Source) *Aggregate {
	a := &Aggregate{log: log, sink: sink, pinned: pinned, rank: map[string]int{}, objects: map[object.Key][]*object.Object{},
		shadows: map[object.Key]struct{}{}, aside: map[object.Key]*object.Object{}}
	for i, s := range sources {
		a.rank[s.Name()] = i
		s.Handle(a.handle)
	}
	return a
}

func (a *Aggregate) handle(ctx context.Context, from string, events []source.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if from == a.withheld {
		events = lists.Filter(events, func(e source.Event) bool { return !a.setAside(e) })
	}
	a.apply(ctx, from, events)
}

// apply takes events of a source over that count. It is called with mu held.
func (a *Aggregate) apply(ctx context.Context, from string, events []source.Event) {
	var changes []normalise.Change
	for _, e := range events {
		before := first(a.objects[e.Key])
		after := a.put(from, e)
		if before != after {
			a.warn(before, after)
			changes = append(changes, normalise.Change{Key: e.Key, Object: after})
		}
	}
	if len(changes) > 0 {
		a.sink(ctx, changes)
	}
}

// maxLogged bounds how many warnings of one version of an object are logged.
const maxLogged = 10

// warn logs the warnings of an object that comes into force, unless the version before it had the same.
func (a *Aggregate) warn(before, after *object.Object) {
	if after == nil || before != nil && slices.Equal(before.Warnings, after.Warnings) {
		return
	}
	for i, w := range after.Warnings {
		if i == maxLogged {
			a.log.Warn("more fields of the object have no effect, see /debug/sources", "source", after.Source,
				"object", after.Key.String(), "count", len(after.Warnings)-maxLogged)
			break
		}
		a.log.Warn("object accepted, one of its fields has no effect", "source", after.Source, "warning", w.Error())
	}
}

func first(list []*object.Object) *object.Object {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// precedes orders the versions of one object in several sources. The first is in force: that of the pinned source, then
// the one that was created first, then one that states no creation time, as in a file. Among equals the order of
// sources decides. The order depends on the versions alone, so every replica decides alike.
func (a *Aggregate) precedes(x, y *object.Object) int {
	later := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	return cmp.Or(
		later(x.Source != a.pinned)-later(y.Source != a.pinned),
		a.declared[x.Source]-a.declared[y.Source],
		later(x.Created.IsZero())-later(y.Created.IsZero()),
		x.Created.Compare(y.Created),
		a.rankOf(x.Source)-a.rankOf(y.Source),
	)
}

// rankOf is the place of a source among all, or that of the source which it is a part of: "consul/east" is of "consul".
func (a *Aggregate) rankOf(source string) int {
	if rank, ok := a.rank[source]; ok {
		return rank
	}
	whole, _, _ := strings.Cut(source, "/")
	return a.rank[whole]
}

// put stores the event's object under its source and returns the object in force.
func (a *Aggregate) put(from string, e source.Event) *object.Object {
	list := slices.DeleteFunc(slices.Clone(a.objects[e.Key]), func(o *object.Object) bool { return o.Source == from })
	if e.Object != nil {
		list = append(list, e.Object)
		slices.SortFunc(list, a.precedes)
	}
	if len(list) == 0 {
		delete(a.objects, e.Key)
	} else {
		a.objects[e.Key] = list
	}
	if _, known := a.shadows[e.Key]; len(list) > 1 && !known {
		a.shadows[e.Key] = struct{}{}
		a.log.Warn("object is in two sources, the older is in force", "object", e.Key.String(), "counts", list[0].Source, "shadowed",
			list[1].Source)
	} else if len(list) <= 1 {
		delete(a.shadows, e.Key)
	}
	return first(list)
}

// Conflict is an object that several sources deliver.
type Conflict struct {
	Object   string   `json:"object"`
	Counts   string   `json:"counts"`
	Shadowed []string `json:"shadowed"`
}

// Conflicts lists objects that several sources deliver, sorted.
func (a *Aggregate) Conflicts() []Conflict {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := []Conflict{}
	for _, k := range slices.SortedFunc(maps.Keys(a.shadows), object.Key.Compare) {
		list := a.objects[k]
		c := Conflict{Object: k.String(), Counts: list[0].Source}
		for _, o := range list[1:] {
			c.Shadowed = append(c.Shadowed, o.Source)
		}
		out = append(out, c)
	}
	return out
}

// Warnings lists the warnings of the objects in force, sorted.
func (a *Aggregate) Warnings() object.Problems {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out object.Problems
	for _, list := range a.objects {
		out = append(out, first(list).Warnings...)
	}
	return out.Sorted()
}

// Others returns the versions of an object in other sources: those that come before o, and those after it. o itself
// need not be among the versions, as before a write.
func (a *Aggregate) Others(o *object.Object) (more, less []*object.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, other := range a.objects[o.Key] {
		switch {
		case other.Source == o.Source:
		case a.precedes(other, o) < 0:
			more = append(more, other)
		default:
			less = append(less, other)
		}
	}
	return more, less
}

// Overridden lists the versions of each object that several sources deliver. The version in force comes first.
func (a *Aggregate) Overridden() [][]*object.Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([][]*object.Object, 0, len(a.shadows))
	for k := range a.shadows {
		out = append(out, a.objects[k]) // put replaces lists and never changes one
	}
	return out
}

// All returns the versions of every object, sorted by key; the version in force comes first.
func (a *Aggregate) All() [][]*object.Object {
	a.mu.Lock()
	out := make([][]*object.Object, 0, len(a.objects))
	for _, list := range a.objects {
		out = append(out, list) // put replaces lists and never changes one
	}
	a.mu.Unlock()
	slices.SortFunc(out, func(x, y []*object.Object) int { return x[0].Key.Compare(y[0].Key) })
	return out
}

// Get returns the object in force; nil if there is none.
func (a *Aggregate) Get(k object.Key) *object.Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	return first(a.objects[k])
}
