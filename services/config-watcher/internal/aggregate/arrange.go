package aggregate

import (
	"context"
	"maps"
	"slices"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// Arrange says which sources the mesh configuration declares, in their order: they come after all others. The objects
// of Istio's kinds in the source called withheld do not count; it may be empty. What changes by that goes to the sink.
func (a *Aggregate) Arrange(declared []string, withheld string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ctx := context.Background()
	if before := a.withheld; before != withheld {
		a.withheld = withheld
		var back []source.Event
		for _, k := range slices.SortedFunc(maps.Keys(a.aside), object.Key.Compare) {
			back = append(back, source.Event{Key: k, Object: a.aside[k]})
		}
		clear(a.aside)
		a.apply(ctx, before, back)
		var away []source.Event
		for k, list := range a.objects {
			if i := slices.IndexFunc(list, func(o *object.Object) bool { return o.Source == withheld }); i >= 0 && kinds.OfIstio(k) {
				a.aside[k] = list[i]
				away = append(away, source.Event{Key: k})
			}
		}
		slices.SortFunc(away, func(x, y source.Event) int { return x.Key.Compare(y.Key) })
		a.apply(ctx, withheld, away)
	}
	places := map[string]int{}
	for i, name := range declared {
		places[name] = i + 1
	}
	if maps.Equal(places, a.declared) {
		return
	}
	a.declared = places
	var changes []normalise.Change
	for k := range a.shadows {
		list := slices.SortedFunc(slices.Values(a.objects[k]), a.precedes)
		if list[0] != a.objects[k][0] {
			changes = append(changes, normalise.Change{Key: k, Object: list[0]})
		}
		a.objects[k] = list
	}
	if len(changes) > 0 {
		slices.SortFunc(changes, func(x, y normalise.Change) int { return x.Key.Compare(y.Key) })
		a.sink(ctx, changes)
	}
}

// setAside keeps an object of the withheld source that does not count, and reports whether it is one. It is called with
// mu held.
func (a *Aggregate) setAside(e source.Event) bool {
	switch {
	case !kinds.OfIstio(e.Key):
		return false
	case e.Object == nil:
		delete(a.aside, e.Key)
	default:
		a.aside[e.Key] = e.Object
	}
	return true
}

// Withheld is the number of objects that do not count because their source is withheld, and its name.
func (a *Aggregate) Withheld() (objects int, from string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.aside), a.withheld
}
