package serve

import (
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// reclassify moves the stream to another class if the mesh has made its proxy one, and ends it if the node id has become another account's. It
// reports whether anything may be different from what the client holds. The caller holds mu.
func (st *stream) reclassify() (touched bool) {
	var key *class.Key
	for state := (*mesh.Snapshot)(nil); state != st.server.engine.State(); {
		// If the mesh moves on before the audience knows the topics, regroup may pass by this stream.
		state = st.server.engine.State()
		w, err := st.node.Workload(state)
		if err != nil {
			st.end(status.Error(codes.PermissionDenied, err.Error()))
			return false
		}
		if verified := w != nil && st.node.Identity != ""; verified != st.verified {
			st.verified = verified
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
	// The old class may be at the new state already, without having said so: what it has not said is different from what the client holds.
	late := old.Undelivered()
	st.class = st.server.engine.Acquire(key, st)
	st.account.reclassify(old.Key(), key)
	for _, sub := range st.types {
		sub.planned = false
		st.plan(sub, sub.names.all())
	}
	after := st.class.Snapshot()
	for _, sub := range st.types {
		st.markDifferencesDirty(sub, before.Type(sub.url), after.Type(sub.url))
		for _, name := range late[sub.url] {
			st.markDirtyIfHeld(sub, name)
		}
		old.Release(st, sub.url, sub.names.all())
	}
	st.server.engine.Release(old, st)
	st.server.log.Info("proxy changed class", "node", st.node.ID, "from", old.ID(), "to", st.class.ID())
	return true
}

// regroup moves the streams whose proxies have become another class. It waits for none that is busy with a request: such a one moves after it.
func (s *Server) reclassify(touched mesh.Topics) {
	var group errgroup.Group
	group.SetLimit(8)
	for _, st := range s.subscribers.subscribers(touched) {
		group.Go(func() error {
			st.enqueueReclassify()
			return nil
		})
	}
	_ = group.Wait() // the functions return no errors
}

// regroup makes the stream look whether the mesh has made its proxy another class.
func (st *stream) enqueueReclassify() { st.enqueue(queuedChange{reclassify: true}) }
