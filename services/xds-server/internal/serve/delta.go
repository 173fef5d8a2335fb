package serve

import (
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/services/xds-server/internal/plan"
)

// CreateDeltaWatch implements cache.ConfigWatcher. The delta loop calls it for every request, in the order of arrival:
// a subscription, an ACK, a NACK, or both in one. Responses go to the channel, now or later.
func (st *stream) CreateDeltaWatch(req *cache.DeltaRequest, state cache.Subscription, to chan cache.DeltaResponse) (func(), error) {
	payload := st.nextPayload()
	defer payload.freeBuffers()
	st.lock()
	defer st.unlock()
	sub, isNew, err := st.acceptRequest(payload.node, req.GetTypeUrl())
	if sub == nil {
		if err == nil {
			st.noteUnserved(req.GetTypeUrl(), req.GetErrorDetail())
		}
		return nil, err
	}
	answers := st.handleNonce(sub, req.GetResponseNonce(), req.GetErrorDetail())
	if isNew || payload.changesSubscription() {
		err = st.updateDelta(sub, payload, state.IsWildcard(), isNew)
		answers = true
	}
	if err != nil {
		return nil, err
	}
	req.Reset() // a request that waits for its response needs no more than the type
	req.TypeUrl = sub.url
	sub.open = watch{delta: req, deltaTo: to}
	st.flush()
	if answers {
		st.server.reports.markChanged(st)
	}
	return sub.cancel, nil
}

// updateDelta applies the names that the request subscribes to and unsubscribes from. isNew is true for the first
// request of the type on this stream, which also states the client's initial resource versions.
func (st *stream) updateDelta(sub *subscription, payload requestPayload, wildcard, isNew bool) error {
	wasWildcard := sub.wildcard
	var names []string
	if sub.url != resource.VirtualHostType {
		sub.wildcard = wildcard
	}
	listed, err := st.subscribeListing(sub, payload.subscribeList.total())
	if !listed || !isNew {
		names = payload.subscribed()
	}
	if !listed {
		if sub.url == resource.VirtualHostType {
			names = st.limitHosts(sub, names)
		}
		err = st.subscribe(sub, names)
	}
	st.account.AddWork(len(names) + len(payload.unsubscribe))
	if err != nil {
		return err
	}
	for _, name := range payload.unsubscribe {
		if sub.wildcard && sub.names.Has(name) {
			// The protocol demands an answer for a name that is unsubscribed while the wildcard still covers it: the
			// resource again, or its removal.
			defer st.markRequested(sub, name)
		}
	}
	st.unsubscribe(sub, payload.unsubscribe)
	switch {
	case isNew && sub.url == resource.VirtualHostType:
		if err := st.openVirtualHosts(sub, payload.initial); err != nil {
			return err
		}
		st.markAllRequested(sub, names, payload.initial)
		if !payload.initial.empty() {
			st.remember(sub, sub.names.Names()) // requested in an earlier stream, perhaps of another replica
		}
		return nil
	case isNew:
		if err := st.checkHeld(payload.initial); err != nil {
			return err
		}
		st.openDelta(sub, payload.initial)
		return nil
	}
	st.markAllRequested(sub, names, nil)
	if sub.wildcard && !wasWildcard {
		st.markAllDirty(sub, st.class.Snapshot().Type(sub.url))
		sub.responseDue = true
	}
	return nil
}

// markAllRequested marks names that the client waits for, except those that it holds in the current version.
func (st *stream) markAllRequested(sub *subscription, names []string, initial *initialVersions) {
	if len(names) == 0 {
		return
	}
	versions := initial.decoded()
	current := st.class.Snapshot().Type(sub.url)
	for _, name := range names {
		if name == "*" || !sub.names.Has(name) {
			continue
		}
		if version, ok := versions[name]; ok {
			if item, _ := current.Get(name); item.Blob != nil && item.Blob.Version() == version {
				continue
			}
		}
		st.markRequested(sub, name)
	}
}

// checkHeld bounds the initial resource versions of a request, which are kept until the first response is made.
func (st *stream) checkHeld(initial *initialVersions) error {
	if size := initial.size + initial.tally.Count()*nameOverhead; size > st.server.maxSubscribedBytes {
		return status.Error(codes.ResourceExhausted, "too many resources said to be held on one stream")
	}
	return nil
}

// openDelta handles the first request of a type other than virtual hosts: only what differs from the client's initial
// resource versions is marked dirty.
func (st *stream) openDelta(sub *subscription, initial *initialVersions) {
	current := st.class.Snapshot().Type(sub.url)
	if !initial.empty() && st.holdsListing(sub, current, initial) {
		st.requestWarmingEndpoints(sub)
		sub.answered = sub.dirty.Len() == 0
		return
	}
	held := initial.decoded()
	if sub.url == resource.ClusterType && sub.wildcard {
		if st.subscribeHeld(sub, held); len(held) == 0 {
			st.subscribeRemembered(sub)
		}
		current = st.class.Snapshot().Type(sub.url)
	}
	st.markAllDirty(sub, current)
	for name, version := range held {
		if item, _ := current.Get(name); item.Blob != nil && sub.wants(name, item) && item.Blob.Version() == version {
			sub.dirty.Remove(name)
		} else if sub.wildcard || sub.names.Has(name) {
			st.markDirty(sub, name)
		}
	}
	st.requestWarmingEndpoints(sub)
	if sub.url == resource.ClusterType && len(held) > 0 {
		st.remember(sub, sub.names.Names()) // requested in an earlier stream, perhaps of another replica
	}
	// A client that holds nothing waits for a response, even an empty one.
	sub.responseDue = sub.wildcard && len(held) == 0
	sub.answered = sub.dirty.Len() == 0 && !sub.responseDue
	if !sub.names.Shared() {
		for _, name := range sub.dirty.Names() {
			if sub.names.Has(name) {
				sub.requested.Add(name)
			}
		}
	}
	if sub.url == resource.RouteType {
		st.openRouteConfigs(sub, held)
	}
}

// holdsListing reports whether the subscription covers exactly the resources that the class lists, and the client holds
// all of them in the current versions. It compares tallies; the initial versions stay undecoded.
func (st *stream) holdsListing(sub *subscription, current *plan.TypeSnapshot, initial *initialVersions) bool {
	if sub.url == resource.RouteType || sub.wildcard == (sub.names.Len() > 0) {
		return false
	}
	l := current.Listing("")
	return l.HasVersions(initial.tally) && (sub.wildcard || sub.names.Shares(l.Names))
}
