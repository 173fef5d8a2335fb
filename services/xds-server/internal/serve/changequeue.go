package serve

import (
	"sync"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
)

// hearing is how a stream hears of changes without making the caller wait: a revision is applied to all streams by a
// few goroutines, and a client whose request is long must not hold up the others. What comes while the stream's mutex
// is taken waits here for who holds it.
type changeQueue struct {
	changesMu sync.Mutex
	changes   []queuedChange
	// upTo is the newest revision whose changes the stream has heard of, all of them: what was served when the mutex
	// was taken. It goes with the stream's mutex.
	servedRevision *configv1.Revision
}

// heardChange is one call of Changed, and what was served before it, or one of regroup.
type queuedChange struct {
	changed, added plan.Changes
	servedBefore   *configv1.Revision
	reclassify     bool
}

// lock takes the stream's mutex and everything that has changed until then.
func (st *stream) lock() {
	st.mu.Lock()
	served := st.server.engine.Served()
	st.applyChanges()
	st.servedRevision = served
}

// unlock gives the mutex back. Changes that came meanwhile are taken over first, and those that come in between by
// whoever has it next.
func (st *stream) unlock() {
	for {
		served := st.server.engine.Served()
		st.applyChanges()
		st.servedRevision = served
		st.mu.Unlock()
		if st.noChangesQueued() || !st.mu.TryLock() {
			return
		}
	}
}

// Changed implements plan.Watcher.
func (st *stream) Changed(changes, arrived plan.Changes) {
	st.enqueue(queuedChange{changed: changes, added: arrived})
}

// tell has the stream hear of something, at once unless its mutex is taken.
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

// hear takes over what has changed. The caller holds s.mu.
func (st *stream) applyChanges() {
	st.changesMu.Lock()
	queued := st.changes
	st.changes = nil
	st.changesMu.Unlock()
	if len(queued) == 0 || st.closed || st.class == nil {
		return
	}
	touched := false
	for _, c := range queued {
		st.servedRevision = c.servedBefore
		if c.reclassify {
			touched = st.reclassify() || touched
			continue
		}
		touched = st.applyChange(c.changed, c.added) || touched
	}
	if touched {
		st.server.reports.markChanged(st)
		st.flush()
	}
}

// changed marks what may be different from what the client holds, and reports whether anything is.
func (st *stream) applyChange(changes, arrived plan.Changes) (touched bool) {
	for url, names := range changes {
		sub := st.subscription(url)
		if sub == nil {
			continue
		}
		for _, name := range names {
			touched = st.markDirtyIfHeld(sub, name) || touched
		}
		if url == resource.ClusterType {
			for _, name := range arrived[url] {
				st.noteNewCluster(sub, name)
			}
		}
	}
	return touched
}
