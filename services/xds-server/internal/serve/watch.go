package serve

import (
	"slices"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/xds-server/internal/plan"
)

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
		return nil, false, s.leaveAside(typeURL)
	}
	return s.typeOf(typeURL)
}

// ambientTypes begin the types that Istio's ztunnels and waypoints are configured with. A proxy that asks for one
// waits for it, so its stream ends with the reason; what an agent only tells, such as its workload's health, is left
// aside.
var ambientTypes = []string{"type.googleapis.com/istio.workload.", "type.googleapis.com/istio.security."}

// leaveAside counts the types that nobody makes: go-control-plane's loop remembers each for as long as the stream lives.
func (s *stream) leaveAside(typeURL string) error {
	if len(typeURL) > maxTypeURLBytes {
		return status.Errorf(codes.InvalidArgument, "type URL of %d bytes, at most %d are read", len(typeURL), maxTypeURLBytes)
	}
	for _, prefix := range ambientTypes {
		if strings.HasPrefix(typeURL, prefix) {
			return status.Errorf(codes.Unimplemented,
				"%s is a type of ambient mode, which is not served; unset PEER_METADATA_DISCOVERY, and run sidecars in place of ztunnels", typeURL)
		}
	}
	if slices.Contains(s.aside, typeURL) {
		return nil
	}
	if len(s.aside) >= maxTypes {
		return status.Errorf(codes.ResourceExhausted, "more than %d types that are not served on one stream", maxTypes)
	}
	s.aside = append(s.aside, typeURL)
	return nil
}

// CreateDeltaWatch implements cache.ConfigWatcher: it takes one delta request, in the order of the stream.
func (s *stream) CreateDeltaWatch(req *cache.DeltaRequest, state cache.Subscription, to chan cache.DeltaResponse) (func(), error) {
	said := s.nextParcel()
	defer said.free()
	s.lock()
	defer s.unlock()
	sub, isNew, err := s.admit(said.node, req.GetTypeUrl())
	if sub == nil {
		return nil, err
	}
	answers := s.acknowledge(sub, req.GetResponseNonce(), req.GetErrorDetail())
	if isNew || said.says() {
		err = s.updateDelta(sub, said, state.IsWildcard(), isNew)
		answers = true
	}
	if err != nil {
		return nil, err
	}
	req.Reset() // what waits for an answer needs no more than the type
	req.TypeUrl = sub.url
	sub.open = watch{delta: req, deltaTo: to}
	s.flush()
	if answers {
		s.server.reports.touch(s)
	}
	return sub.cancel, nil
}

// updateDelta takes over what the request subscribes to.
func (s *stream) updateDelta(sub *subscription, said parcel, wildcard, isNew bool) error {
	wasWildcard := sub.wildcard
	var names []string
	if sub.url != resource.VirtualHostType {
		sub.wildcard = wildcard
	}
	listed, err := s.subscribeListing(sub, said.asked.counted())
	if !listed || !isNew {
		names = said.names()
	}
	if !listed {
		if sub.url == resource.VirtualHostType {
			names = s.admitHosts(sub, names)
		}
		err = s.subscribe(sub, names)
	}
	s.account.worked(len(names) + len(said.unsubscribe))
	if err != nil {
		return err
	}
	for _, name := range said.unsubscribe {
		if sub.wildcard && sub.names.has(name) {
			// The protocol wants the resource sent again, or said to be gone, when only the explicit part of the subscription ends.
			defer s.ask(sub, name)
		}
	}
	s.unsubscribe(sub, said.unsubscribe)
	switch {
	case isNew && sub.url == resource.VirtualHostType:
		if err := s.openHosts(sub, said.held); err != nil {
			return err
		}
		s.askAll(sub, names, said.held)
		if !said.held.none() {
			s.learn(sub, sub.names.all()) // asked for in an earlier stream, perhaps another server's
		}
		return nil
	case isNew:
		if err := s.checkHeld(said.held); err != nil {
			return err
		}
		s.openDelta(sub, said.held)
		return nil
	}
	s.askAll(sub, names, nil)
	if sub.wildcard && !wasWildcard {
		s.touchAll(sub, s.class.Snapshot().Type(sub.url))
		sub.owed = true
	}
	return nil
}

// askAll marks names that a client waits for; it does not wait for those it holds in the current version.
func (s *stream) askAll(sub *subscription, names []string, held *holding) {
	if len(names) == 0 {
		return
	}
	versions := held.all()
	current := s.class.Snapshot().Type(sub.url)
	for _, name := range names {
		if name == "*" || !sub.names.has(name) {
			continue
		}
		if version, ok := versions[name]; ok {
			if item, _ := current.Get(name); item.Blob != nil && item.Blob.Version() == version {
				continue
			}
		}
		s.ask(sub, name)
	}
}

// checkHeld bounds what a client may say it holds: the names are kept until the response that settles them.
func (s *stream) checkHeld(held *holding) error {
	if size := held.size + held.tally.Count()*nameOverhead; size > s.server.maxSubscribedBytes {
		return status.Error(codes.ResourceExhausted, "too many resources said to be held on one stream")
	}
	return nil
}

// openDelta takes over the first request of a type: what the client holds already is not sent.
func (s *stream) openDelta(sub *subscription, holds *holding) {
	current := s.class.Snapshot().Type(sub.url)
	if !holds.none() && s.holdsListing(sub, current, holds) {
		s.warm(sub)
		sub.answered = sub.dirty.len() == 0
		return
	}
	held := holds.all()
	if sub.url == resource.ClusterType && sub.wildcard {
		if s.adopt(sub, held); len(held) == 0 {
			s.recall(sub)
		}
		current = s.class.Snapshot().Type(sub.url)
	}
	s.touchAll(sub, current)
	for name, version := range held {
		if item, _ := current.Get(name); item.Blob != nil && sub.wants(name, item) && item.Blob.Version() == version {
			sub.dirty.remove(name)
		} else if sub.wildcard || sub.names.has(name) {
			s.touch(sub, name)
		}
	}
	s.warm(sub)
	if sub.url == resource.ClusterType && len(held) > 0 {
		s.learn(sub, sub.names.all()) // it was asked for in an earlier stream, perhaps another server's
	}
	// A client that holds nothing waits for an answer, if only to learn that there is nothing.
	sub.owed = sub.wildcard && len(held) == 0
	sub.answered = sub.dirty.len() == 0 && !sub.owed
	if !sub.names.shared {
		for _, name := range sub.dirty.list {
			if sub.names.has(name) {
				sub.fresh.add(name)
			}
		}
	}
	if sub.url == resource.RouteType {
		s.openRoutes(sub, held)
	}
}

// holdsListing reports whether the client holds, in the current versions, all that the subscription covers, where that is what a listing has.
func (s *stream) holdsListing(sub *subscription, current *plan.TypeSnapshot, holds *holding) bool {
	if sub.url == resource.RouteType || sub.wildcard == (sub.names.len() > 0) {
		return false
	}
	l := current.Listing("")
	return l.HasVersions(holds.tally) && (sub.wildcard || sub.names.is(l.Names))
}

// CreateWatch implements cache.ConfigWatcher: it takes one state-of-the-world request.
func (s *stream) CreateWatch(req *cache.Request, state cache.Subscription, to chan cache.Response) (func(), error) {
	s.lock()
	defer s.unlock()
	said := s.heard
	s.heard = parcel{}
	sub, isNew, err := s.admit(said.node, req.GetTypeUrl())
	if sub == nil {
		return nil, err
	}
	if out := sub.outstanding; out != nil && out.nonce == "" {
		// The loop drops a response that it has not sent when a request of the same type comes in between.
		s.finish(sub, out, "dropped")
		out.release()
		for _, b := range out.blobs {
			s.ask(sub, b.Name())
		}
		sub.owed = sub.wildcard
	}
	s.acknowledge(sub, req.GetResponseNonce(), req.GetErrorDetail())
	if err := s.updateWorld(sub, said.subscribe, req.GetVersionInfo(), state.IsWildcard(), isNew); err != nil {
		return nil, err
	}
	req.Reset() // as above
	req.TypeUrl = sub.url
	sub.open = watch{world: req, worldTo: to}
	s.flush()
	s.server.reports.touch(s)
	return sub.cancel, nil
}

// updateWorld takes over what the request subscribes to: all names, every time.
func (s *stream) updateWorld(sub *subscription, wanted []string, version string, wildcard, isNew bool) error {
	wasWildcard := sub.wildcard
	sub.wildcard = wildcard
	added, gone := sub.compare(wanted)
	s.account.worked(len(wanted)/comparedNames + len(added) + len(gone))
	if err := s.subscribe(sub, added); err != nil {
		return err
	}
	s.unsubscribe(sub, gone)
	current := s.class.Snapshot().Type(sub.url)
	if isNew {
		// Of a wildcard type the client holds what its version says. Of names it may not: it can have dropped one and asked for it again
		// since, and the version is still that of the response before.
		if sub.wildcard && sub.names.len() == 0 && version == current.Version() {
			sub.answered = true
			sub.keep(s.whole(sub, current))
			return nil
		}
		s.touchAll(sub, current)
		s.warm(sub)
		sub.owed = sub.wildcard
		return nil
	}
	for _, name := range added {
		s.ask(sub, name)
	}
	if sub.wildcard && !wasWildcard {
		s.touchAll(sub, current)
		sub.owed = true
	}
	return nil
}

// overhear sees every state-of-the-world request, also those that the loop leaves aside because their nonce is stale. What such a request
// gives up the client has dropped: if a later one asks for it again, it must be sent again.
func (s *stream) overhear(req *cache.Request) {
	said := s.nextParcel()
	s.lock()
	defer s.unlock()
	if s.heard = said; s.closed {
		return
	}
	sub := s.of(req.GetTypeUrl())
	if sub == nil || sub.wildcard {
		return
	}
	_, gone := sub.compare(said.subscribe)
	s.unsubscribe(sub, gone)
}

// compare lists what a state-of-the-world request has and the subscription has not, and the other way round.
func (b *subscription) compare(wanted []string) (added, gone []string) {
	wanted = slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return name == "*" })
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	for _, name := range wanted {
		if !b.names.has(name) {
			added = append(added, name)
		}
	}
	b.names.each(func(name string) bool {
		if _, ok := slices.BinarySearch(wanted, name); !ok {
			gone = append(gone, name)
		}
		return true
	})
	return added, gone
}

// sentDelta and sentWorld are called by the loop right before a response goes out.
func (s *stream) sentDelta(m *discovery.DeltaDiscoveryResponse) {
	s.sent(m, m.GetTypeUrl(), m.GetNonce())
}
func (s *stream) sentWorld(m *discovery.DiscoveryResponse) { s.sent(m, m.GetTypeUrl(), m.GetNonce()) }
