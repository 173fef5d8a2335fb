package kubernetes

import (
	"context"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// A list of the API server, or its answer that it does not have a kind, removes objects only as package withheld
// allows: each kind that is watched as a whole has a Guard. Events of a watch are what somebody did, and take effect at
// once. confirming asks for the second list.

// maxDeleted bounds the namespaces that are remembered as deleted. Without them, a list withholds more than it must.
const maxDeleted = 10_000

// readAll takes over that the objects in list are all that the API server has of the kind, at a resource version, empty
// if it has said none. It removes others, or withholds them. The objects of the list itself are not in the lanes yet:
// new ones are no reason to miss others less. saved counts the objects of the list that were in force in an earlier run
// only. It is called with Source.mu held.
func (k *kind) readAll(s *Source, list map[types.NamespacedName]*entry, saved int, version string) {
	inForce, missing := k.missing(s, list)
	inForce += saved
	doubtful, users := false, false
	if k.namespaces() {
		doubtful, users = k.lineage(list, version)
		doubtful = doubtful || 2*len(missing) > inForce || !k.guard.Due().IsZero()
		users = users && !doubtful
		s.noteNamespaces(list, missing, users)
	}
	k.asked, k.read, k.newest = false, true, version
	rest := missing[:0:0]
	for _, name := range missing {
		if s.deleted[name.Namespace] || users {
			k.remove(s, name)
			inForce--
		} else {
			rest = append(rest, name)
		}
	}
	before, _ := k.guard.Held()
	removed := k.guard.Reading(withheld.Reading[types.NamespacedName]{
		At: s.cfg.Clock.Now(), InForce: inForce, Missing: rest, Doubtful: doubtful,
	})
	for _, name := range removed {
		k.remove(s, name)
	}
	k.asked, k.read = false, true
	switch count, since := k.guard.Held(); {
	case count > before:
		s.cfg.Log.Warn("much is missing in a list of the API server: it stays in force until a second list says the same", "source", s.name,
			"kind", k.String(), "missing", count, "of", inForce, "until", since.Add(withheld.Wait), "remedy",
			"if it was deleted on purpose, `fairlead sources accept "+s.name+"` ends the wait; otherwise bring the API server's data back")
	case count < before && len(removed) > 0:
		s.cfg.Log.Warn("a second list of the API server lacks the same objects, they are removed", "source", s.name, "kind", k.String(),
			"removed", len(removed), "withheld", count)
	case count < before:
		s.cfg.Log.Info("objects that were missing are back", "source", s.name, "kind", k.String(), "back", before-count, "withheld", count)
	}
	notify.Wake(s.confirm)
}

// missing counts the objects of the kind that are in force, or wait in a lane to be, and lists those that are not in
// keep. What waits in a lane to be removed is removed already. It is called with Source.mu held.
func (k *kind) missing(s *Source, keep map[types.NamespacedName]*entry) (inForce int, missing []types.NamespacedName) {
	seen := map[types.NamespacedName]bool{}
	count := func(name types.NamespacedName) {
		waiting, waits := s.lanes[k.lane][k.key(name)]
		if seen[name] || waits && waiting == nil {
			return
		}
		seen[name] = true
		inForce++
		if keep[name] == nil {
			missing = append(missing, name)
		}
	}
	for name := range k.objects {
		count(name)
	}
	of := func(key object.Key) {
		if key.Group == k.desc.Group && key.Kind == k.desc.Name {
			count(nameOf(key))
		}
	}
	for key := range s.lanes[k.lane] {
		of(key)
	}
	for key := range s.taken {
		of(key)
	}
	// A refused object without a good version is not in force, and nobody misses it.
	for name := range k.problems {
		if !seen[name] && keep[name] == nil {
			k.change(s, name, nil)
		}
	}
	return inForce, missing
}

// remove makes the removal of an object wait for delivery. It is called with Source.mu held.
func (k *kind) remove(s *Source, name types.NamespacedName) {
	k.guard.Forget(name)
	k.change(s, name, nil)
}

// namespaces reports whether the kind is Namespace.
func (k *kind) namespaces() bool { return k.desc.Group == "" && k.desc.Name == "Namespace" }

// noteNamespaces takes over which namespaces a list has, and which are missing in it; users is true if it is sure that
// users have deleted these. It is called with mu held.
func (s *Source) noteNamespaces(list map[types.NamespacedName]*entry, missing []types.NamespacedName, users bool) {
	for _, e := range list {
		s.noteNamespace(e, false)
	}
	if system := list[types.NamespacedName{Name: kubeSystem}]; system != nil {
		s.kinds[schema.GroupKind{Kind: "Namespace"}].sawSystem(system)
	}
	if !users {
		return
	}
	for _, name := range missing {
		s.noteNamespace(&entry{name: name}, true)
	}
}

// noteNamespace takes over that a namespace is there, or is gone or about to be because somebody has deleted it. What
// is withheld of such a one is removed. It is called with mu held.
func (s *Source) noteNamespace(e *entry, gone bool) {
	namespace := e.name.Name
	if !gone && !e.ending {
		delete(s.deleted, namespace)
		return
	}
	if s.deleted[namespace] {
		return
	}
	if len(s.deleted) >= maxDeleted {
		clear(s.deleted)
	}
	s.deleted[namespace] = true
	for _, k := range s.kinds {
		if k.guard.Due().IsZero() {
			continue
		}
		for name := range k.objects {
			if name.Namespace == namespace && k.guard.Has(name) {
				k.remove(s, name)
			}
		}
	}
}

// savedWithin is how long a first list waits for the disk with the saved state.
const savedWithin = 2 * time.Second

// savedMissing returns the saved objects that a watcher's first list lacks, and the number of the others: they were in
// force when the last run ended.
// Only the watcher's reflector waits for the disk.
func (w *watcher) savedMissing(list []any) (missing []*entry, others int) {
	s, k := w.source, w.kind
	if w.name.Name != "" || !s.unread(k) {
		return nil, 0
	}
	there := make(map[types.NamespacedName]bool, len(list))
	for _, o := range list {
		if e, ok := o.(*entry); ok {
			there[e.name] = true
		}
	}
	system := types.NamespacedName{Name: kubeSystem} // its UID is compared
	listed := there[system]
	delete(there, system)
	missing, others = s.saved(k, there)
	return slices.DeleteFunc(missing, func(e *entry) bool {
		if !k.namespaces() || e.name != system {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if k.system == "" {
			k.sawSystem(e)
		}
		return listed
	}), others
}

// unread reports whether a kind has not been read in this run, and what an earlier run has saved of it is not in force.
func (s *Source) unread(k *kind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.Saved != nil && !k.restored && !k.read
}

// saved reads the saved objects of a kind, but those in except it counts only. If the disk takes too long, there are
// none.
func (s *Source) saved(k *kind, except map[types.NamespacedName]bool) (out []*entry, excepted int) {
	type content struct {
		entries  []*entry
		excepted int
	}
	read := make(chan content, 1)
	go func() {
		saved, excepted, err := s.readKind(k, except)
		if err != nil {
			s.cfg.Log.Error("saved objects cannot be compared with what the API server has", "source", s.name, "kind", k.String(), "error", err)
		}
		read <- content{slices.DeleteFunc(saved, func(e *entry) bool { return e.object == nil }), excepted}
	}()
	select {
	case saved := <-read:
		return saved.entries, saved.excepted
	case <-s.cfg.Clock.After(savedWithin):
		s.cfg.Log.Warn("saved objects are not compared with what the API server has, because the disk takes too long", "source", s.name, "kind",
			k.String())
		return nil, 0
	}
}

// savedAbsent returns the saved objects of the kinds that an API server surely does not have, of which nothing has been
// read in this run.
func (s *Source) savedAbsent(have *resources) map[*kind][]*entry {
	out := map[*kind][]*entry{}
	var mu sync.Mutex
	var reads sync.WaitGroup
	for gk, k := range s.kinds {
		if now, known := have.find(k.desc.Versions, gk); !s.isLookedFor(gk, k) || !known || now != (served{}) || !s.unread(k) {
			continue
		}
		reads.Go(func() {
			saved, _ := s.saved(k, nil)
			mu.Lock()
			defer mu.Unlock()
			out[k] = saved
		})
	}
	reads.Wait()
	return out
}

// confirming asks for a second list of each kind of which objects are withheld, when it is time.
func (s *Source) confirming(ctx context.Context) error {
	for {
		var due <-chan time.Time
		now := s.cfg.Clock.Now()
		if next := s.askAgain(now); !next.IsZero() {
			due = s.cfg.Clock.After(next.Sub(now))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.confirm:
		case <-due:
		}
	}
}

// askAgain asks for the lists that are due, and returns when the next one is; zero if none is.
func (s *Source) askAgain(now time.Time) (next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kinds {
		due := k.guard.Due()
		if due.IsZero() || k.asked {
			continue
		}
		if due.After(now) {
			if next.IsZero() || due.Before(next) {
				next = due
			}
			continue
		}
		k.asked = true
		if w := k.watchers[types.NamespacedName{}]; w != nil {
			w.relist()
		} // otherwise discovering reads the kind
	}
	return next
}

// errAgain ends a watch so that the reflector lists.
var errAgain = apierrors.NewResourceExpired("objects are withheld: they are listed again")

// relist makes the reflector list again. It is called with Source.mu held.
func (w *watcher) relist() {
	w.again = true
	if w.open != nil {
		w.open.expire()
	}
}

// Accept implements source.Withholder.
func (s *Source) Accept() (removed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.sortedKinds() {
		names := k.guard.Accept()
		for _, name := range names {
			k.remove(s, name)
		}
		if removed += len(names); len(names) > 0 {
			s.cfg.Log.Warn("an administrator has accepted that objects are gone, they are removed", "source", s.name, "kind", k.String(),
				"removed", len(names))
		}
	}
	if removed > 0 {
		notify.Wake(s.wake)
	}
	return removed
}

// withheldOf tells what is withheld of a kind. It is called with mu held.
func (k *kind) withheldOf() (source.Withheld, bool) {
	count, since := k.guard.Held()
	return source.Withheld{What: k.String(), Objects: count, InForce: len(k.objects), Since: since, Until: since.Add(withheld.Wait)}, count > 0
}
