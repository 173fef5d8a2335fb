package serve

import (
	"context"
	"errors"
	"slices"
	"sync"
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
)

// stream is one ADS stream: the ConfigWatcher and the callbacks of its own go-control-plane server, and a Watcher of its class.
//
// Locks: mu may be held while calling the class and the engine, never the other way round.
type stream struct {
	server *Server
	delta  bool
	peer   *auth.Peer // nil on the plaintext port
	ctx    context.Context

	connectedAt time.Time
	// wake asks the stream's handler to try again after the order timeout.
	wake chan struct{}

	mu     sync.Mutex
	closed bool
	node   *class.Node
	class  *plan.Class
	// topics whose change may make the class another one.
	topics replica.Topics
	types  map[string]*subscription
	// warming are endpoints whose clusters were sent before any endpoints were asked for.
	warming map[string]struct{}
	// nameBytes is what the names subscribed to take.
	nameBytes int
	// gatedSince is when something first had to wait for what goes before it; zero if nothing waits.
	gatedSince time.Time
	acked      *configv1.Revision
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
	if s.peer != nil {
		if err := node.Authorize(s.peer.ID); err != nil {
			return status.Error(codes.PermissionDenied, err.Error())
		}
	}
	for {
		state := s.server.engine.State()
		if state.Revision() == nil {
			return status.Error(codes.Unavailable, "no configuration received from config-watcher yet")
		}
		key, topics := node.Key(state)
		c := s.server.engine.Acquire(key, s)
		if s.server.engine.State() == state {
			s.node, s.class, s.topics = node, c, topics
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
	s.topics = topics
	if key.Hash() == s.class.Key().Hash() {
		return
	}
	before, old := s.class.Snapshot(), s.class
	s.class = s.server.engine.Acquire(key, s)
	for url, sub := range s.types {
		s.class.Plan(url, sub.wildcard, keys(sub.names))
		sub.planned = sub.wildcard
	}
	after := s.class.Snapshot()
	for url, sub := range s.types {
		touchDifferent(sub, before.Type(url), after.Type(url))
		old.Release(url, keys(sub.names))
	}
	s.server.engine.Release(old, s)
	s.server.log.Info("proxy changed class", "node", s.node.ID, "from", old.ID(), "to", s.class.ID())
	s.flush()
}

// touchDifferent marks what one snapshot has and another has not, or not in the same version.
func touchDifferent(sub *subscription, before, after *plan.TypeSnapshot) {
	compare := func(name string) {
		a, _ := before.Get(name)
		b, _ := after.Get(name)
		if a.Blob != b.Blob || a.Wildcard != b.Wildcard {
			sub.touch(name)
		}
	}
	for name := range sub.names {
		compare(name)
	}
	if !sub.wildcard {
		return
	}
	for _, snapshot := range []*plan.TypeSnapshot{before, after} {
		snapshot.Scan(func(name string, item plan.Item) bool {
			if item.Wildcard {
				compare(name)
			}
			return true
		})
	}
}

// Changed implements plan.Watcher.
func (s *stream) Changed(changes plan.Changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.class == nil {
		return
	}
	for url, names := range changes {
		sub, ok := s.types[url]
		if !ok {
			continue
		}
		for _, name := range names {
			if _, asked := sub.names[name]; asked || sub.wildcard {
				sub.touch(name)
			}
		}
	}
	s.flush()
}

// close gives back what the stream holds.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	for url, sub := range s.types {
		sub.open = nil
		if out := sub.outstanding; out != nil {
			s.finish(sub, out, "stream closed")
		}
		if s.class != nil {
			s.class.Release(url, keys(sub.names))
		}
	}
	if s.class != nil {
		s.server.engine.Release(s.class, s)
	}
}

// flush hands out every response that can go now, in order. It is called with mu held after anything that may have made one possible.
func (s *stream) flush() {
	waits := false
	for _, url := range s.order() {
		sub := s.types[url]
		if sub.open == nil || sub.outstanding != nil {
			continue
		}
		if s.gated(sub) {
			waits = true
			continue
		}
		s.respond(sub)
		waits = waits || len(sub.deferred) > 0
	}
	switch {
	case !waits:
		s.gatedSince = time.Time{}
	case s.gatedSince.IsZero():
		s.gatedSince = s.server.clock.Now()
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// order lists the stream's types as they are to be sent.
func (s *stream) order() []string {
	urls := make([]string, 0, len(s.types))
	for _, url := range sendOrder {
		if _, ok := s.types[url]; ok {
			urls = append(urls, url)
		}
	}
	if len(urls) == len(s.types) {
		return urls
	}
	known := len(urls)
	for url := range s.types {
		if !slices.Contains(sendOrder, url) {
			urls = append(urls, url)
		}
	}
	slices.Sort(urls[known:])
	return urls
}

// gated reports whether an update must wait for the types before it: listeners and routes until the clusters and endpoints they may refer
// to were taken over (Envoy holds the ACK of clusters back until they are warm), routes also until listeners were sent. First responses
// never wait, and nothing waits longer than the order timeout.
func (s *stream) gated(sub *subscription) bool {
	if !sub.answered || !sub.pending() || s.overdue() {
		return false
	}
	switch sub.url {
	case resource.ListenerType:
		return s.types[resource.ClusterType].pending() || s.types[resource.EndpointType].pending()
	case resource.RouteType:
		lds := s.types[resource.ListenerType]
		return s.types[resource.ClusterType].pending() || s.types[resource.EndpointType].pending() || lds != nil && len(lds.dirty) > 0
	default:
		return false
	}
}

func (s *stream) overdue() bool {
	return !s.gatedSince.IsZero() && s.server.clock.Now().Sub(s.gatedSince) >= s.server.orderTimeout
}

// referred reports whether removals of the type must wait: clusters until routes and listeners that may have referred to them are
// replaced, endpoints until their clusters are gone.
func (s *stream) referred(sub *subscription) bool {
	if s.overdue() {
		return false
	}
	routes := s.types[resource.ListenerType].pending() || s.types[resource.RouteType].pending()
	switch sub.url {
	case resource.ClusterType:
		return routes
	case resource.EndpointType:
		cds := s.types[resource.ClusterType]
		return routes || cds != nil && (cds.pending() || len(cds.deferred) > 0)
	default:
		return false
	}
}

// subscribe adds names to a subscription and plans them.
func (s *stream) subscribe(sub *subscription, names []string) error {
	var added []string
	for _, name := range names {
		if name == "*" {
			continue
		}
		if len(name) > s.server.maxNameBytes {
			return status.Errorf(codes.InvalidArgument, "resource name of %d bytes, at most %d are taken", len(name), s.server.maxNameBytes)
		}
		if _, ok := sub.names[name]; ok {
			continue
		}
		if s.nameBytes += len(name) + nameOverhead; s.nameBytes > s.server.maxSubscribedBytes {
			return status.Error(codes.ResourceExhausted, "too many resource names subscribed to on one stream")
		}
		sub.names[name] = struct{}{}
		added = append(added, name)
	}
	if len(added) > 0 || sub.wildcard && !sub.planned {
		s.class.Plan(sub.url, sub.wildcard, added)
		sub.planned = sub.wildcard || sub.planned
	}
	return nil
}

func (s *stream) unsubscribe(sub *subscription, names []string) {
	var dropped []string
	for _, name := range names {
		if _, ok := sub.names[name]; !ok {
			continue
		}
		s.nameBytes -= len(name) + nameOverhead
		delete(sub.names, name)
		delete(sub.absent, name)
		delete(sub.fresh, name)
		delete(sub.deferred, name)
		if !sub.wildcard {
			delete(sub.dirty, name)
			delete(sub.withheld, name)
		}
		dropped = append(dropped, name)
	}
	if len(dropped) > 0 {
		s.class.Release(sub.url, dropped)
	}
}

// nameOverhead is what a name costs beside its text.
const nameOverhead = 64

// errTooManyTypes bounds what a client can make a stream keep.
var errTooManyTypes = errors.New("too many types on one stream")

// typeOf returns the subscription of a type and whether it is new.
func (s *stream) typeOf(url string) (sub *subscription, isNew bool, err error) {
	if sub, ok := s.types[url]; ok {
		return sub, false, nil
	}
	if len(s.types) >= maxTypes {
		return nil, false, status.Error(codes.ResourceExhausted, errTooManyTypes.Error())
	}
	sub = newSubscription(url)
	s.types[url] = sub
	return sub, true, nil
}

func keys(set map[string]struct{}) []string {
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
