package serve

import (
	"sync"

	"fairlead.dev/services/xds-server/internal/plan"
)

// changeQueue holds changes of the class that arrive while the stream's mutex is taken; whoever holds the mutex applies
// them before unlocking. A few goroutines bring a revision to all streams, and a client with a long request must not
// hold up the others.
type changeQueue struct {
	changesMu sync.Mutex
	changes   []queuedChange
}

// queuedChange is a call of Changed, or of enqueueReclassify, and the state that was served before it.
type queuedChange struct {
	changed, added plan.Changes
	servedBefore   plan.Point
	reclassify     bool
}

// lock takes the stream's mutex and applies the queued changes.
func (st *stream) lock() {
	st.mu.Lock()
	served := st.server.engine.Served()
	st.applyChanges()
	st.client.SetServed(served)
}

// unlock applies the queued changes and releases the mutex. If a change is queued meanwhile, unlock takes the mutex
// again, unless somebody else has it, who will apply the change.
func (st *stream) unlock() {
	for {
		served := st.server.engine.Served()
		st.applyChanges()
		st.client.SetServed(served)
		st.mu.Unlock()
		if st.noChangesQueued() || !st.mu.TryLock() {
			return
		}
	}
}

// Changed implements plan.Watcher: the class calls it after a revision has changed resources. added are the names among
// them that are new.
func (st *stream) Changed(changes, added plan.Changes) {
	st.enqueue(queuedChange{changed: changes, added: added})
}

// enqueue queues a change and applies it at once if the stream's mutex is free.
func (st *stream) enqueue(c queuedChange) {
	st.changesMu.Lock()
	c.servedBefore = st.server.engine.Served()
	st.changes = append(st.changes, c)
	st.changesMu.Unlock()
	if st.mu.TryLock() {
		st.unlock()
	}
}

func (st *stream) noChangesQueued() bool {
	st.changesMu.Lock()
	defer st.changesMu.Unlock()
	return len(st.changes) == 0
}

// applyChanges applies the queued changes and sends what they have made dirty. The caller holds mu.
func (st *stream) applyChanges() {
	st.changesMu.Lock()
	queued := st.changes
	st.changes = nil
	st.changesMu.Unlock()
	if len(queued) == 0 || st.closed || st.class == nil {
		return
	}
	dirty := false
	for _, c := range queued {
		st.client.SetServed(c.servedBefore)
		if c.reclassify {
			dirty = st.reclassify() || dirty
			continue
		}
		dirty = st.client.Changed(c.changed, c.added) || dirty
	}
	if dirty {
		st.server.reports.markChanged(st)
		st.flush()
	}
}
