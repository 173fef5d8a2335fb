package serve

import (
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// reclassify moves the stream to another class if the current snapshot puts its proxy there. It ends the stream if the
// proxy's Workload has become one of another service account. It reports whether some resource may differ from what the
// client holds. The caller holds mu.
func (st *stream) reclassify() (dirty bool) {
	var key *class.Key
	for state := (*mesh.Snapshot)(nil); state != st.server.engine.State(); {
		// If a newer snapshot is applied before the index has the new topics, Server.reclassify may miss this stream.
		state = st.server.engine.State()
		w, err := st.node.Workload(state)
		if err != nil {
			st.end(status.Error(codes.PermissionDenied, err.Error()))
			return false
		}
		if verified := w != nil && st.node.Identity != ""; verified != st.verified || w.GetName() != st.workload {
			st.verified, st.workload = verified, w.GetName()
			st.server.reports.markChanged(st)
		}
		var topics mesh.Topics
		key, topics = st.node.Key(state)
		st.server.subscribers.replace(st, st.topics, topics)
		st.topics = topics
	}
	if key.Hash() == st.class.Key().Hash() {
		return false
	}
	before, old := st.class.Snapshot(), st.class
	// The snapshot of the old class may contain changes that it has not reported to the stream yet: the client does not
	// hold those either.
	undelivered := old.Undelivered()
	st.class = st.server.engine.Acquire(key, st)
	st.account.Reclassify(old.Key(), key)
	st.client.Replan()
	st.client.Reclassified(before, undelivered, func(url string, names []string) { old.Release(st, url, names) })
	st.server.engine.Release(old, st)
	st.server.log.Info("proxy changed class", "node", st.node.ID, "from", old.ID(), "to", st.class.ID())
	return true
}

// reclassify makes the streams that depend on one of the topics look whether their proxies have changed class. Apply
// calls it before classes report their changes. It does not wait for a stream that is busy with a request: that stream
// reclassifies when the request is done.
func (s *Server) reclassify(changed mesh.Topics) {
	var group errgroup.Group
	group.SetLimit(8)
	for _, st := range s.subscribers.of(changed) {
		group.Go(func() error {
			st.enqueueReclassify()
			return nil
		})
	}
	_ = group.Wait() // the functions return no errors
}

// enqueueReclassify calls reclassify, later if the stream's mutex is taken.
func (st *stream) enqueueReclassify() { st.enqueue(queuedChange{reclassify: true}) }
