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
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/replica"
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

	connectedAt time.Time
	// wake asks the stream's handler to try again after the order timeout.
	wake chan struct{}
	inbox
	transit
	mover
	// reported is true while the reporter has yet to look at the stream.
	reported atomic.Bool

	mu     sync.Mutex
	closed bool
	node   *class.Node
	class  *plan.Class
	// topics whose change may make the class another one.
	topics replica.Topics
	// types in the order they are sent in.
	types []*subscription
	// warming are clusters that were sent before any endpoints were asked for.
	warming [][]*store.Blob
	// nameBytes is what the names take that the stream keeps.
	nameBytes int
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
		key, topics := node.Key(state)
		c := s.server.engine.Acquire(key, s)
		s.server.audience.set(s, s.topics, topics)
		s.topics = topics
		if s.server.engine.State() == state {
			s.node, s.class = node, c
			s.server.reports.opened(s)
			return nil
		}
		// The mesh has moved on in between, and regroup may have passed by this stream already.
		s.server.engine.Release(c, s)
	}
}

// regroup moves the stream to another class if the mesh has made its proxy one.
func (s *stream) regroup(state *replica.State, touched replica.Topics) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.class == nil || !s.topics.Meets(touched) {
		return
	}
	key, topics := s.node.Key(state)
	s.server.audience.set(s, s.topics, topics)
	s.topics = topics
	if key.Hash() == s.class.Key().Hash() {
		return
	}
	before, old := s.class.Snapshot(), s.class
	// The old class may be at the new state already, without having said so: what it has not said is different from what the client holds.
	late := old.Undelivered()
	s.class = s.server.engine.Acquire(key, s)
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
	s.server.reports.touch(s)
	s.flush()
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

// Changed implements plan.Watcher.
func (s *stream) Changed(changes, arrived plan.Changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.class == nil {
		return
	}
	touched := false
	for url, names := range changes {
		sub := s.of(url)
		if sub == nil {
			continue
		}
		for _, name := range names {
			touched = s.touchIfHeld(sub, name) || touched
		}
		if url == resource.ClusterType {
			for _, name := range arrived[url] {
				s.arrives(sub, name)
			}
		}
	}
	if touched {
		s.server.reports.touch(s)
		s.flush()
	}
}

// close gives back what the stream holds.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
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
	if s.class != nil {
		s.server.engine.Release(s.class, s)
		s.server.reports.closed(s)
		s.server.learnt.left(s.node.ID)
	}
}

// flush hands out every response that can go now, in order. It is called with mu held after anything that may have made one possible.
func (s *stream) flush() {
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.served = true
	s.flush()
	s.served = false
}

// retry sends what has waited too long for what goes before it.
func (s *stream) retry() {
	s.mu.Lock()
	defer s.mu.Unlock()
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
