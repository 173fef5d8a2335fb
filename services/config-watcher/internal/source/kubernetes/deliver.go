package kubernetes

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

const (
	// maxEvents bounds one call of the handler, so that endpoints do not wait behind all of a first list.
	maxEvents = source.MaxTogether
	// checkEvery is how often deliver looks for kinds that are forbidden for so long that nobody should wait for them.
	checkEvery = 500 * time.Millisecond
)

// change is the newest state of one object; a nil entry means that the object is gone.
type change struct {
	key   object.Key
	entry *entry
}

// deliver calls the handler with what waits in the lanes. It is the only goroutine that does. What arrives meanwhile
// gathers, the newest state of each object.
func (s *Source) deliver(ctx context.Context) error {
	for {
		var check <-chan time.Time
		if !s.HasSynced() {
			check = s.cfg.Clock.After(checkEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-check:
		}
		watchers, restored := s.listedWatchers()
		listed, err := s.listedKinds()
		if err != nil {
			return err
		}
		for lane := range s.lanes {
			if err := s.deliverLane(ctx, lane); err != nil {
				return err
			}
		}
		s.settle(listed, watchers, restored)
	}
}

// listedWatchers are those whose first list waits in the lanes; restored is when the last good state was saved that
// waits there, zero if none does. What each watcher has seen counts as delivered after settle.
func (s *Source) listedWatchers() (out []*watcher, restored time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kinds {
		for _, w := range k.watchers {
			w.taking = w.seen
			if w.listed && !w.delivered {
				out = append(out, w)
			}
		}
	}
	return out, s.restoring
}

// deliverLane delivers all that waits in a lane now. Changes of endpoints go before each call for another lane.
func (s *Source) deliverLane(ctx context.Context, lane int) error {
	for batch := range slices.Chunk(s.take(lane), maxEvents) {
		if lane != laneEndpoints {
			if err := s.deliverLane(ctx, laneEndpoints); err != nil {
				return err
			}
		}
		events, err := s.eventsOf(batch)
		if err != nil {
			return err
		}
		if len(events) > 0 {
			s.handler(ctx, s.name, events)
		}
	}
	return nil
}

// take empties a lane, sorted by key.
func (s *Source) take(lane int) []change {
	s.mu.Lock()
	waiting := s.lanes[lane]
	s.lanes[lane] = map[object.Key]*entry{}
	for k := range waiting {
		s.taken[k] = struct{}{}
	}
	s.mu.Unlock()
	out := make([]change, 0, len(waiting))
	for k, e := range waiting {
		out = append(out, change{k, e})
	}
	slices.SortFunc(out, func(a, b change) int { return a.key.Compare(b.key) })
	return out
}

// eventsOf applies changes to the delivered objects and returns what differs.
func (s *Source) eventsOf(batch []change) ([]source.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []source.Event
	for _, c := range batch {
		k := s.kinds[schema.GroupKind{Group: c.key.Group, Kind: c.key.Kind}]
		name := types.NamespacedName{Namespace: c.key.Namespace, Name: c.key.Name}
		before := k.objects[name]
		delete(s.taken, c.key)
		w := k.watchers[name]
		if c.entry != nil && c.entry.restored && (k.answered() || w != nil && w.listed) && !k.guard.Has(name) {
			continue // the API server knows better
		}
		after, err := s.next(k, name, before, c.entry)
		if err != nil {
			return nil, err
		}
		if after == before {
			continue
		}
		if before != nil && before.Held {
			k.held--
		}
		if after == nil {
			delete(k.objects, name)
		} else {
			k.objects[name] = after
		}
		if after != nil && after.Held {
			k.held++
		}
		k.dirty[shardOf(name)] = true
		k.events++
		events = append(events, source.Event{Key: c.key, Object: after})
	}
	return events, nil
}

// next returns the object in force after a change, and takes over its problems. It is called with mu held.
func (s *Source) next(k *kind, name types.NamespacedName, before *object.Object, e *entry) (*object.Object, error) {
	switch {
	case e == nil || e.object == nil && e.problems == nil:
		k.accept(name)
		return nil, nil
	case e.object != nil:
		k.accept(name)
		if before != nil && before.Digest == e.object.Digest && before.UID == e.object.UID {
			return before, nil
		}
		return e.object, nil
	}
	problems := e.problems
	after := before
	if before == nil {
		if e.lost != nil {
			return nil, e.lost
		}
		after = e.saved
	}
	if after != nil && e.uid != "" && after.UID != "" && after.UID != e.uid {
		after = nil // that object is gone, this one has its name
	}
	if e.hold != nil && (after == nil || after.Held) {
		after = e.hold.Object
		after.Source = s.name
		if p := e.hold.Problem(); !slices.Contains(problems, p) {
			problems = append(slices.Clip(problems), p)
		}
	}
	if !slices.Equal(k.problems[name], problems) {
		for _, p := range problems {
			if hold.IsSecurity(p) {
				s.cfg.Log.Error("security object refused, its new content is not enforced", "source", s.name, "problem", p.Error())
			} else {
				s.cfg.Log.Warn("object refused, its last good version stays", "source", s.name, "problem", p.Error())
			}
		}
	}
	k.problems[name] = problems
	k.refuse(name, e, problems)
	return after, nil
}

// answered reports whether the kind has been listed in this run. It is called with mu held.
func (k *kind) answered() bool {
	for _, w := range k.watchers {
		if w.name.Name == "" && w.listed {
			return true
		}
	}
	return false
}

// listedKinds returns the kinds whose first list waits in the lanes, or has been delivered, and those for which nobody
// can wait: for a kind that is forbidden, its last good state or a hold waits in the lanes then.
func (s *Source) listedKinds() ([]*kind, error) {
	listed, forbidden := s.readableKinds()
	for _, k := range forbidden {
		saved, _, err := s.readKind(k, nil)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.restore(k, saved)
		if h, ok := hold.Unread(k.desc.Group, k.desc.Name, s.name); ok && !k.restored && !k.answered() {
			k.change(s, types.NamespacedName{Name: h.Object.Key.Name}, &entry{hold: &h, problems: object.Problems{h.Problem()}})
		}
		s.mu.Unlock()
	}
	return append(listed, forbidden...), nil
}

// readableKinds returns the kinds that are not settled and have been listed, and those that are forbidden for so long
// that nobody waits for them.
func (s *Source) readableKinds() (listed, forbidden []*kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Clock.Now()
	anyRead := false // without a right at all, nothing is known of the mesh
	for _, k := range s.kinds {
		anyRead = anyRead || k.answered()
	}
	for _, k := range s.kinds {
		w := k.watchers[types.NamespacedName{}]
		if k.byName() {
			w = k.watchers[meshConfig]
		}
		if w == nil || k.settled || !w.listed && (!anyRead || !w.denied(now)) {
			continue
		}
		if w.listed {
			listed = append(listed, k)
			continue
		}
		s.cfg.Log.Error("kind is forbidden, the mesh is served without its objects or with the last good state of them", "source", s.name, "kind",
			k.String(), "error", w.failure.err)
		forbidden = append(forbidden, k)
	}
	return listed, forbidden
}

// settle marks the kinds that have been delivered. The source is synced when no other kind is left.
func (s *Source) settle(delivered []*kind, watchers []*watcher, restored time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range delivered {
		k.settled = true
	}
	for _, k := range s.kinds {
		for _, w := range k.watchers {
			w.version = w.taking
		}
	}
	for _, w := range watchers {
		w.delivered = true
	}
	if len(watchers) > 0 {
		s.lookedUp()
	}
	if s.synced {
		return
	}
	if !restored.IsZero() && s.lastGood.IsZero() {
		s.lastGood = restored
		s.cfg.Log.Warn("source has not been read since the start, its last good state is served", "source", s.name, "saved", restored)
	}
	for _, k := range s.kinds {
		if !k.settled {
			return
		}
	}
	s.synced, s.lastGood = true, time.Time{}
	s.cfg.Log.Info("API server has been read", "source", s.name, "took", s.cfg.Clock.Now().Sub(s.started).Round(time.Millisecond))
	s.markRead()
}
