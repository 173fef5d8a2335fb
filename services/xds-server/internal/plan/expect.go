package plan

import (
	"time"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
)

// expectations are the tiers of namespaces, and of everybody below them, that were planned before a proxy has come.
type expectations struct {
	// urls are the types that are planned then.
	urls []string
	// arrived says that there is a mesh; done is true once it was looked at. The engine's applying guards it.
	arrived chan struct{}
	done    bool
	// held are the tiers that are kept although nobody uses them yet, and since when; the engine's mu guards it.
	held map[tierID]time.Time
}

// expect makes Run plan ahead when the first mesh with workloads is there.
func (e *Engine) expect() {
	if e.expected.done || len(e.expected.urls) == 0 {
		return
	}
	select {
	case e.expected.arrived <- struct{}{}:
	default:
	}
}

// prepare plans what all namespaces, and all workloads of one, share for the sidecars that the mesh's workloads let expect, so that the first
// of them find it there. It gives way to revisions and to proxies between two types. What nobody has come for when the linger time is over is dropped.
func (e *Engine) prepare() {
	keys := class.Expected(e.State())
	if len(keys) == 0 {
		return
	}
	e.applying.Lock()
	e.expected.done = true
	e.applying.Unlock()
	for _, key := range keys {
		t := e.hold(key)
		for _, url := range e.expected.urls {
			e.listAhead(t, url)
		}
	}
}

// hold returns the tier of a namespace's key, which is not dropped for the linger time.
func (e *Engine) hold(key *class.Key) *tier {
	e.step.RLock()
	defer e.step.RUnlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tier(key, input.NamespaceScope, e.tier(key.OfMesh(), input.MeshScope, nil))
	id := tierID{t.scope, t.hash}
	if _, ok := e.expected.held[id]; !ok {
		t.users++
	}
	e.expected.held[id] = e.clock.Now()
	return t
}

func (e *Engine) listAhead(t *tier, url string) {
	e.step.RLock()
	defer e.step.RUnlock()
	defer t.lock()()
	t.list(url)
	t.snapshot(url)
}

// unhold lets go of tiers that were planned ahead before a time, and returns those that nobody uses. The caller holds mu.
func (e *Engine) unhold(before time.Time) (dead []*tier) {
	for id, since := range e.expected.held {
		if !since.Before(before) {
			continue
		}
		delete(e.expected.held, id)
		dead = append(dead, e.unuse(e.shared[id])...)
	}
	return dead
}
