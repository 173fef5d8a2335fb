package plan

import (
	"time"

	"fairlead.dev/pkg/notify"

	"fairlead.dev/services/xds-server/internal/class"
)

// prebuilt are the scope plans of namespaces, and of the mesh below them, that are built before the first proxy
// connects.
type prebuilt struct {
	// types are Config.Prebuild.
	types []string
	// requested has a token when Run has to prebuild. done is true once it has; Engine.applyMu guards it.
	requested chan struct{}
	done      bool
	// retained are the plans that are kept although they have no other user, and since when; Engine.mu guards it.
	retained map[scopeID]time.Time
}

// requestPrebuild makes Run prebuild after a revision, until one has brought workloads. The caller holds applyMu.
func (e *Engine) requestPrebuild() {
	if e.prebuilt.done || len(e.prebuilt.types) == 0 {
		return
	}
	notify.Wake(e.prebuilt.requested)
}

// prebuild builds the wildcard sets of the scopes that the sidecars of the mesh's workloads will share: those of their
// namespaces and of the mesh. It locks for one type of one namespace at a time, so that revisions and proxies come
// between. sweep drops the plans that no proxy has used within the linger time.
func (e *Engine) prebuild() {
	keys := class.PrebuildKeys(e.State())
	if len(keys) == 0 {
		return
	}
	e.applyMu.Lock()
	e.prebuilt.done = true
	e.applyMu.Unlock()
	for _, key := range keys {
		s := e.retain(key)
		for _, url := range e.prebuilt.types {
			e.prebuildType(s, url)
		}
	}
}

// retain returns the scope plan of a namespace's key and keeps it for the linger time.
func (e *Engine) retain(key *class.Key) *scopePlan {
	e.updateMu.RLock()
	defer e.updateMu.RUnlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.namespacePlan(key)
	id := scopeID{s.scope, s.hash}
	s.retained = true
	e.prebuilt.retained[id] = e.clock.Now()
	return s
}

func (e *Engine) prebuildType(s *scopePlan, url string) {
	e.updateMu.RLock()
	defer e.updateMu.RUnlock()
	defer s.lock()()
	s.planWildcard(url)
	s.snapshot(url)
}

// releasePrebuilt releases the plans that were prebuilt before a time, and returns those that have no other user, for
// the caller to close. The caller holds mu.
func (e *Engine) releasePrebuilt(before time.Time) (unused []*scopePlan) {
	for id, since := range e.prebuilt.retained {
		if !since.Before(before) {
			continue
		}
		delete(e.prebuilt.retained, id)
		e.shared[id].retained = false
		unused = append(unused, e.removeUnused(e.shared[id])...)
	}
	return unused
}
