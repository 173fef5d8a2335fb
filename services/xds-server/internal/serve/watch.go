package serve

import (
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// maxTypes bounds the types of one stream.
const maxTypes = 16

// admit checks a request's node and finds the subscription to its type. Both are nil for a type that nobody makes: such a request is never
// answered. The caller holds s.mu.
func (s *stream) admit(node *core.Node, typeURL string) (sub *subscription, isNew bool, err error) {
	if s.closed {
		return nil, false, status.Error(codes.Unavailable, "stream is closing")
	}
	if err := s.identify(node); err != nil {
		return nil, false, err
	}
	if !s.server.engine.Knows(typeURL) {
		return nil, false, nil
	}
	return s.typeOf(typeURL)
}

// CreateDeltaWatch implements cache.ConfigWatcher: it takes one delta request, in the order of the stream.
func (s *stream) CreateDeltaWatch(req *cache.DeltaRequest, state cache.Subscription, to chan cache.DeltaResponse) (func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub, isNew, err := s.admit(req.GetNode(), req.GetTypeUrl())
	if sub == nil {
		return nil, err
	}
	s.acknowledge(sub, req.GetResponseNonce(), req.GetErrorDetail())
	if err := s.updateDelta(sub, req, state, isNew); err != nil {
		return nil, err
	}
	w := &watch{delta: req, deltaTo: to}
	sub.open = w
	s.flush()
	s.server.changed.Notify()
	return s.cancel(sub, w), nil
}

// updateDelta takes over what the request subscribes to.
func (s *stream) updateDelta(sub *subscription, req *cache.DeltaRequest, state cache.Subscription, isNew bool) error {
	wasWildcard := sub.wildcard
	sub.wildcard = state.IsWildcard()
	if err := s.subscribe(sub, req.GetResourceNamesSubscribe()); err != nil {
		return err
	}
	for _, name := range req.GetResourceNamesUnsubscribe() {
		if _, asked := sub.names[name]; asked && sub.wildcard {
			// The protocol wants the resource sent again, or said to be gone, when only the explicit part of the subscription ends.
			defer sub.ask(name)
		}
	}
	s.unsubscribe(sub, req.GetResourceNamesUnsubscribe())
	current := s.class.Snapshot().Type(sub.url)
	if !isNew {
		for _, name := range req.GetResourceNamesSubscribe() {
			if name != "*" {
				sub.ask(name)
			}
		}
		if sub.wildcard && !wasWildcard {
			sub.touchAll(current)
			sub.owed = true
		}
		return nil
	}
	held := req.GetInitialResourceVersions()
	sub.touchAll(current)
	for name, version := range held {
		if item, _ := current.Get(name); item.Blob != nil && sub.wants(name, item) && item.Blob.Version() == version {
			delete(sub.dirty, name)
		} else if _, asked := sub.names[name]; asked || sub.wildcard {
			sub.touch(name)
		}
	}
	s.warm(sub)
	// A client that holds nothing waits for an answer, if only to learn that there is nothing.
	sub.owed = sub.wildcard && len(held) == 0
	sub.answered = len(sub.dirty) == 0 && !sub.owed
	for name := range sub.names {
		if _, ok := sub.dirty[name]; ok {
			sub.fresh[name] = struct{}{}
		}
	}
	return nil
}

// CreateWatch implements cache.ConfigWatcher: it takes one state-of-the-world request.
func (s *stream) CreateWatch(req *cache.Request, state cache.Subscription, to chan cache.Response) (func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub, isNew, err := s.admit(req.GetNode(), req.GetTypeUrl())
	if sub == nil {
		return nil, err
	}
	if out := sub.outstanding; out != nil && out.nonce == "" {
		// The loop drops a response that it has not sent when a request of the same type comes in between.
		s.finish(sub, out, "dropped")
		for _, b := range out.blobs {
			sub.ask(b.Name())
		}
		sub.owed = sub.wildcard
	}
	s.acknowledge(sub, req.GetResponseNonce(), req.GetErrorDetail())
	if err := s.updateWorld(sub, req, state, isNew); err != nil {
		return nil, err
	}
	w := &watch{world: req, worldTo: to}
	sub.open = w
	s.flush()
	s.server.changed.Notify()
	return s.cancel(sub, w), nil
}

// updateWorld takes over what the request subscribes to: all names, every time.
func (s *stream) updateWorld(sub *subscription, req *cache.Request, state cache.Subscription, isNew bool) error {
	wanted := state.SubscribedResources()
	wasWildcard := sub.wildcard
	sub.wildcard = state.IsWildcard()
	added := missing(wanted, sub.names)
	if err := s.subscribe(sub, added); err != nil {
		return err
	}
	s.unsubscribe(sub, missing(sub.names, wanted))
	current := s.class.Snapshot().Type(sub.url)
	if isNew {
		// Of a wildcard type the client holds what its version says. Of names it may not: it can have dropped one and asked for it again
		// since, and the version is still that of the response before.
		if sub.wildcard && len(sub.names) == 0 && req.GetVersionInfo() == current.Version() {
			sub.answered = true
			return nil
		}
		sub.touchAll(current)
		sub.owed = sub.wildcard
		return nil
	}
	for _, name := range added {
		sub.ask(name)
	}
	if sub.wildcard && !wasWildcard {
		sub.touchAll(current)
		sub.owed = true
	}
	return nil
}

// overhear sees every state-of-the-world request, also those that the loop leaves aside because their nonce is stale. What such a request
// gives up the client has dropped: if a later one asks for it again, it must be sent again.
func (s *stream) overhear(req *cache.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub, ok := s.types[req.GetTypeUrl()]
	if !ok || s.closed || sub.wildcard {
		return
	}
	wanted := make(map[string]struct{}, len(req.GetResourceNames()))
	for _, name := range req.GetResourceNames() {
		wanted[name] = struct{}{}
	}
	s.unsubscribe(sub, missing(sub.names, wanted))
}

// missing lists what one set has and the other has not.
func missing(from, other map[string]struct{}) []string {
	var names []string
	for name := range from {
		if _, ok := other[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// cancel returns the function by which the loop takes a watch back.
func (s *stream) cancel(sub *subscription, w *watch) func() {
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if sub.open == w {
			sub.open = nil
		}
	}
}

// sentDelta and sentWorld are called by the loop right before a response goes out.
func (s *stream) sentDelta(m *discovery.DeltaDiscoveryResponse) { s.sent(m.GetTypeUrl(), m.GetNonce()) }
func (s *stream) sentWorld(m *discovery.DiscoveryResponse)      { s.sent(m.GetTypeUrl(), m.GetNonce()) }
