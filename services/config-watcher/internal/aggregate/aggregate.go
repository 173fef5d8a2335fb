// Package aggregate merges the objects of all sources into one set. Sources call its handler with changed objects, and
// it passes changes of the merged set on to its Sink (the ban table, then the pipeline).
package aggregate

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// Sink receives the changes of the merged set, in order.
type Sink func(ctx context.Context, changes []normalise.Change)

// Aggregate decides which source's version of an object is in force: that of the first source in New's order. It is
// safe for concurrent use and calls the sink from one goroutine at a time.
type Aggregate struct {
	log  *slog.Logger
	sink Sink
	rank map[string]int

	mu      sync.Mutex
	objects map[object.Key][]*object.Object // by the order of sources; the first is in force
	shadows map[object.Key]struct{}
}

// New registers the aggregate as every source's handler.
func New(log *slog.Logger, sink Sink, sources ...source.Source) *Aggregate {
	a := &Aggregate{log: log, sink: sink, rank: map[string]int{}, objects: map[object.Key][]*object.Object{}, shadows: map[object.Key]struct{}{}}
	for i, s := range sources {
		a.rank[s.Name()] = i
		s.Handle(a.handle)
	}
	return a
}

func (a *Aggregate) handle(ctx context.Context, from string, events []source.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
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

// warn logs the warnings of an object that comes into force, unless the version before it had the same.
func (a *Aggregate) warn(before, after *object.Object) {
	if after == nil || before != nil && slices.Equal(before.Warnings, after.Warnings) {
		return
	}
	for _, w := range after.Warnings {
		a.log.Warn("object accepted, one of its fields has no effect", "source", after.Source, "warning", w.Error())
	}
}

func first(list []*object.Object) *object.Object {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// put stores the event's object under its source and returns the object in force.
func (a *Aggregate) put(from string, e source.Event) *object.Object {
	list := slices.DeleteFunc(slices.Clone(a.objects[e.Key]), func(o *object.Object) bool { return o.Source == from })
	if e.Object != nil {
		at := slices.IndexFunc(list, func(o *object.Object) bool { return a.rank[o.Source] > a.rank[from] })
		if at < 0 {
			at = len(list)
		}
		list = slices.Insert(list, at, e.Object)
	}
	if len(list) == 0 {
		delete(a.objects, e.Key)
	} else {
		a.objects[e.Key] = list
	}
	if _, known := a.shadows[e.Key]; len(list) > 1 && !known {
		a.shadows[e.Key] = struct{}{}
		a.log.Warn("object is in two sources, the first is in force", "object", e.Key.String(), "counts", list[0].Source, "shadowed", list[1].Source)
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

// Others returns the versions of an object from sources before, and from sources after, the named one.
func (a *Aggregate) Others(k object.Key, than string) (more, less []*object.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.objects[k] {
		switch rank := a.rank[o.Source]; {
		case rank < a.rank[than]:
			more = append(more, o)
		case rank > a.rank[than]:
			less = append(less, o)
		}
	}
	return more, less
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
