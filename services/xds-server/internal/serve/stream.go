package serve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/auth"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// stream is one ADS stream: the ConfigWatcher and the callbacks of its own go-control-plane server, and a Watcher of its class.
//
// Locks: mu may be held while calling the class, the engine and the budget, never the other way round.
type stream struct {
	server *Server
	delta  bool
	peer   *auth.Peer // nil on the plaintext port
	ctx    context.Context
	// account is charged for what the stream uses.
	account *account

	connectedAt time.Time
	// wake asks the stream's handler to try again after the order timeout.
	wake chan struct{}
	inbox
	transit
	mover
	hearing
	questions questions
	// reported is true while the reporter has yet to look at the stream.
	reported atomic.Bool

	mu     sync.Mutex
	closed bool
	node   *class.Node
	class  *plan.Class
	// verified is true while the mesh has a Workload of the proxy's proven identity.
	verified bool
	// topics whose change may make the class another one.
	topics mesh.Topics
	// types in the order they are sent in.
	types []*subscription
	// aside are the types that were asked for and are not served.
	aside []string
	// warming are clusters that were sent before any endpoints were asked for.
	warming [][]*store.Blob
	// nameBytes counts the names that the stream keeps, names is what the account is charged for those that are not the
	// class's own.
	nameBytes int
	names     int64
	// gatedSince is when something first had to wait for what goes before it; zero if nothing waits.
	gatedSince time.Time
	// again is true if the flush in progress has found something for a type that it had passed.
	again bool
	// served is true while it is the stream's turn to use the budget.
	served bool
	acked  *configv1.Revision
	tables
}

// identify reads the node of the first request and finds the class.
func (s *stream) identify(n *core.Node) error {
	if s.node != nil {
		return nil
	}
	node, err := class.ParseNode(n)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	node.VirtualHosts = s.delta
	if s.peer != nil {
		if err := node.Authorize(s.peer.ID); err != nil {
			return status.Error(codes.PermissionDenied, err.Error())
		}
	}
	if node.Type == class.Proxyless {
		// Each gRPC program of a workload has a stream of its own under one node id, and each has to be asked what it has acknowledged.
		node.ID = fmt.Sprintf("%s#%08x", node.ID, rand.Uint32())
	}
	for {
		state := s.server.engine.State()
		if state.Revision() == nil {
			return status.Error(codes.Unavailable, "no configuration received from config-watcher yet")
		}
		w, err := node.Workload(state)
		if err != nil {
			return status.Error(codes.PermissionDenied, err.Error())
		}
		key, topics := node.Key(state)
		if err := s.account.admit(node.ID, key); err != nil {
			return err
		}
		c := s.server.engine.Acquire(key, s)
		s.server.audience.set(s, s.topics, topics)
		s.topics = topics
		if s.server.engine.State() == state {
			s.node, s.class, s.verified = node, c, w != nil && node.Identity != ""
			s.server.reports.opened(s)
			return nil
		}
		// The mesh has moved on in between, and regroup may have passed by this stream already.
		s.server.engine.Release(c, s)
		s.account.retract(key)
	}
}

// reclassify moves the stream to another class if the mesh has made its proxy one, and ends it if the node id has become another account's. It
// reports whether anything may be different from what the client holds. The caller holds mu.
func (s *stream) reclassify() (touched bool) {
	var key *class.Key
	for state := (*mesh.Snapshot)(nil); state != s.server.engine.State(); {
		// If the mesh moves on before the audience knows the topics, regroup may pass by this stream.
		state = s.server.engine.State()
		w, err := s.node.Workload(state)
		if err != nil {
			s.end(status.Error(codes.PermissionDenied, err.Error()))
			return false
		}
		if verified := w != nil && s.node.Identity != ""; verified != s.verified {
			s.verified = verified
			s.server.reports.touch(s)
		}
		var topics mesh.Topics
		key, topics = s.node.Key(state)
		s.server.audience.set(s, s.topics, topics)
		s.topics = topics
	}
	if key.Hash() == s.class.Key().Hash() {
		return false
	}
	before, old := s.class.Snapshot(), s.class
	// The old class may be at the new state already, without having said so: what it has not said is different from what the client holds.
	late := old.Undelivered()
	s.class = s.server.engine.Acquire(key, s)
	s.account.regroup(old.Key(), key)
	for _, sub := range s.types {
		sub.planned = false
		s.plan(sub, sub.names.all())
	}
	after := s.class.Snapshot()
	for _, sub := range s.types {
		s.touchDifferent(sub, before.Type(sub.url), after.Type(sub.url))
		for _, name := range late[sub.url] {
			s.touchIfHeld(sub, name)
		}
		old.Release(s, sub.url, sub.names.all())
	}
	s.server.engine.Release(old, s)
	s.server.log.Info("proxy changed class", "node", s.node.ID, "from", old.ID(), "to", s.class.ID())
	return true
}

// touchDifferent marks what one snapshot has and another has not, or not in the same version.
func (s *stream) touchDifferent(sub *subscription, before, after *plan.TypeSnapshot) {
	compare := func(name string) bool {
		a, _ := before.Get(name)
		b, _ := after.Get(name)
		if a.Blob != b.Blob || a.Wildcard != b.Wildcard || a.Pending != b.Pending {
			s.touchIfHeld(sub, name)
		}
		if a.Blob == nil && b.Blob != nil {
			s.arrives(sub, name)
		}
		return true
	}
	sub.names.each(compare)
	if !sub.wildcard && sub.url != resource.VirtualHostType {
		return
	}
	for _, snapshot := range []*plan.TypeSnapshot{before, after} {
		snapshot.Scan(func(name string, item plan.Item) bool { return !item.Wildcard || compare(name) })
	}
}

// arrives notes that a cluster is new to the client.
func (s *stream) arrives(sub *subscription, name string) {
	if sub.url == resource.ClusterType && sub.dirty.has(name) {
		sub.arriving.add(name)
	}
}

// touchIfHeld marks a name if the subscription may have to do with it, and reports whether.
func (s *stream) touchIfHeld(sub *subscription, name string) bool {
	switch {
	case sub.url == resource.VirtualHostType:
		return s.touchHost(sub, name)
	case sub.wildcard || sub.names.has(name):
		s.touch(sub, name)
		return true
	default:
		return false
	}
}

// close gives back what the stream holds.
func (s *stream) close() {
	s.lock()
	defer s.unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.server.budget.leave(s)
	s.server.audience.set(s, s.topics, nil)
	for _, sub := range s.types {
		sub.open = watch{}
		if out := sub.outstanding; out != nil {
			s.finish(sub, out, "stream closed")
			out.release()
		}
		if s.class != nil && !sub.names.shared {
			s.class.Release(s, sub.url, sub.names.all())
		}
	}
	s.account.refund(s.names)
	s.account.close(s.class)
	if s.class != nil {
		s.server.engine.Release(s.class, s)
		s.server.reports.closed(s)
		s.server.learnt.left(s.reporter())
	}
	// The stream's loop may end later, and hold it until then: not with all that its client has asked for.
	s.types, s.warming, s.topics, s.tables = nil, nil, nil, tables{}
}

// flush hands out every response that can go now, in order. It is called with mu held after anything that may have made one possible.
func (s *stream) flush() {
	if s.leaving.Load() {
		return
	}
	waits := false
	for _, sub := range s.types {
		if !sub.open.isOpen() || sub.outstanding != nil {
			continue
		}
		if s.gated(sub) {
			waits = true
			continue
		}
		if !s.respond(sub) {
			return // the budget calls again
		}
		waits = waits || sub.deferred.len() > 0 || sub.url == resource.VirtualHostType && sub.outstanding == nil && sub.dirty.len() > 0
	}
	if s.again {
		s.again = false
		s.flush()
		return
	}
	switch {
	case !waits:
		s.gatedSince = time.Time{}
	case s.gatedSince.IsZero(), s.overdue():
		s.gatedSince = s.server.clock.Now()
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// resume is flush for a stream whose turn it is to use the budget.
func (s *stream) resume() {
	s.lock()
	defer s.unlock()
	if s.closed {
		return
	}
	s.served = true
	s.flush()
	s.served = false
}

// retry sends what has waited too long for what goes before it.
func (s *stream) retry() {
	s.lock()
	defer s.unlock()
	if s.closed || s.class == nil {
		return
	}
	if s.overdue() {
		s.server.metrics.unordered.Inc()
	}
	s.flush()
}

// gated reports whether an update must wait for the types before it: listeners and routes until clusters that are new to the client, which
// they may refer to, were taken over (Envoy holds the ACK of clusters back until they are warm), routes also until listeners were sent,
// virtual hosts until their route configurations were. For clusters virtual hosts wait one by one, see early. First responses never wait, and
// nothing waits longer than the order timeout.
func (s *stream) gated(sub *subscription) bool {
	if !sub.answered || !sub.pending() {
		return false
	}
	switch sub.url {
	case resource.ListenerType, resource.RouteType, resource.VirtualHostType:
	default:
		return false
	}
	hosts := sub.url == resource.VirtualHostType
	for _, other := range s.types {
		switch other.url {
		case resource.ClusterType:
			if !hosts && other.arriving.len() > 0 && other.pending() {
				return !s.overdue()
			}
		case resource.EndpointType:
		case sub.url:
			return false
		default:
			if other.dirty.len() > 0 && (!hosts || other.url == resource.RouteType) {
				return !s.overdue()
			}
		}
	}
	return false
}

// early reports whether a virtual host leads to a cluster that the client does not have yet.
func (s *stream) early(b *store.Blob) bool {
	cds := s.of(resource.ClusterType)
	if cds == nil || cds.arriving.len() == 0 || !cds.pending() || s.overdue() {
		return false
	}
	return slices.ContainsFunc(b.Clusters, cds.arriving.has)
}

func (s *stream) overdue() bool {
	return !s.gatedSince.IsZero() && s.server.clock.Now().Sub(s.gatedSince) >= s.server.orderTimeout
}

// referred reports whether removals of the type must wait: clusters until routes, virtual hosts and listeners that may have referred to
// them are replaced, endpoints until their clusters are gone.
func (s *stream) referred(sub *subscription) bool {
	if sub.url != resource.ClusterType && sub.url != resource.EndpointType {
		return false
	}
	waits := false
	for _, other := range s.types {
		switch other.url {
		case resource.ListenerType, resource.RouteType, resource.VirtualHostType:
			waits = waits || other.pending() && !other.reached(sub.deferredAt)
		case resource.ClusterType:
			waits = waits || sub != other && (other.pending() && !other.reached(sub.deferredAt) || other.deferred.len() > 0)
		}
	}
	return waits && !s.overdue()
}

// reached reports whether the client holds everything of the type up to a revision.
func (b *subscription) reached(revision *configv1.Revision) bool {
	return revision != nil && b.base != nil && b.base.GetEpoch() == revision.GetEpoch() && b.base.GetSequence() >= revision.GetSequence()
}
