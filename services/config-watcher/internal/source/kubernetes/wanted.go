package kubernetes

import (
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// maxWanted bounds the Secrets and ConfigMaps that are watched one by one. Each costs the API server a watch.
const maxWanted = 2000

// Want says which Secrets and ConfigMaps something refers to, in place of those of the last call. The source watches
// these one by one, and no others. The keys are sorted; those beyond maxWanted are named in Status.
func (s *Source) Want(keys []object.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = nil
	if more := len(keys) - maxWanted; more > 0 {
		for _, k := range keys[maxWanted:min(len(keys), maxWanted+maxNamed)] {
			s.left = append(s.left, object.Problem{
				Object: k.String(), Reason: fmt.Sprintf("is not read: %d more than %d Secrets and ConfigMaps are referred to", more, maxWanted),
				Remedy: "remove Gateways and DestinationRules that name credentials which nobody has",
			})
		}
		keys = keys[:maxWanted]
	}
	wanted := make(map[object.Key]bool, len(keys))
	for _, k := range keys {
		wanted[k] = true
	}
	before := s.wanted
	s.wanted = wanted
	for _, k := range s.kinds {
		if !k.byName() {
			continue
		}
		for _, name := range slices.Concat(slices.Collect(maps.Keys(k.watchers)), slices.Collect(maps.Keys(k.objects))) {
			if key := k.key(name); !wanted[key] && !kinds.IsMeshConfig(key) {
				s.halt(k, name)
				k.change(s, name, nil)
			}
		}
	}
	for key := range wanted {
		if !before[key] && s.ctx != nil {
			s.startNamed(key)
		}
	}
	s.lookedUp()
	notify.Wake(s.wake)
}

// WantAlso adds Secrets and ConfigMaps that something refers to, before the first call of Want. What an earlier run has
// saved of others stays. Those beyond maxWanted are left out.
func (s *Source) WantAlso(keys []object.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if len(s.wanted) >= maxWanted {
			break
		}
		if !s.wanted[key] {
			s.wanted[key] = true
			if s.ctx != nil {
				s.startNamed(key)
			}
		}
	}
	s.lookedUp()
	notify.Wake(s.wake)
}

func nameOf(k object.Key) types.NamespacedName {
	return types.NamespacedName{Namespace: k.Namespace, Name: k.Name}
}

func (s *Source) kindOf(k object.Key) *kind {
	return s.kinds[schema.GroupKind{Group: k.Group, Kind: k.Kind}]
}

// startNamed watches one object. It is called with mu held.
func (s *Source) startNamed(key object.Key) {
	if k := s.kindOf(key); k != nil && k.byName() && k.watchers[nameOf(key)] == nil {
		s.start(k, nameOf(key))
	}
}

// Reading implements credential.Lookup: whether Want has named a Secret or ConfigMap, and whether the API server has
// not said yet whether it exists. One that may not be read is as good as one that does not exist.
func (s *Source) Reading(key object.Key) (asked, reading bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kindOf(key)
	if k == nil || !s.wanted[key] {
		return false, false
	}
	w := k.watchers[nameOf(key)]
	if w == nil || w.failure != nil && (w.failure.reason() == source.ReasonForbidden || apierrors.IsNotFound(w.failure.err)) {
		return true, false
	}
	return true, !w.delivered
}

// Looked is closed when an answer of Reading may have changed.
func (s *Source) Looked() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looked
}

// lookedUp closes the channel of Looked. It is called with mu held.
func (s *Source) lookedUp() {
	close(s.looked)
	s.looked = make(chan struct{})
}

// wantedKeys lists what is wanted, sorted. It is called with mu held.
func (s *Source) wantedKeys() []object.Key {
	out := make([]object.Key, 0, len(s.wanted))
	for k := range s.wanted {
		out = append(out, k)
	}
	slices.SortFunc(out, object.Key.Compare)
	return out
}
