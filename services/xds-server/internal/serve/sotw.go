package serve

import (
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// CreateWatch implements cache.ConfigWatcher: it takes one state-of-the-world request.
func (st *stream) CreateWatch(req *cache.Request, state cache.Subscription, to chan cache.Response) (func(), error) {
	st.lock()
	defer st.unlock()
	payload := st.sotwPayload
	st.sotwPayload = requestPayload{}
	sub, isNew, err := st.acceptRequest(payload.node, req.GetTypeUrl())
	if sub == nil {
		return nil, err
	}
	if out := sub.outstanding; out != nil && out.nonce == "" {
		// The loop drops a response that it has not sent when a request of the same type comes in between.
		st.endOutstanding(sub, out, "dropped")
		out.release()
		for _, blob := range out.blobs {
			st.markRequested(sub, blob.Name())
		}
		sub.responseDue = sub.wildcard
	}
	st.handleNonce(sub, req.GetResponseNonce(), req.GetErrorDetail())
	if err := st.updateSotw(sub, payload.subscribe, req.GetVersionInfo(), state.IsWildcard(), isNew); err != nil {
		return nil, err
	}
	req.Reset() // as above
	req.TypeUrl = sub.url
	sub.open = watch{sotw: req, sotwTo: to}
	st.flush()
	st.server.reports.markChanged(st)
	return sub.cancel, nil
}

// updateWorld takes over what the request subscribes to: all names, every time.
func (st *stream) updateSotw(sub *subscription, wanted []string, version string, wildcard, isNew bool) error {
	wasWildcard := sub.wildcard
	sub.wildcard = wildcard
	added, gone := sub.diffNames(wanted)
	st.account.addWork(len(wanted)/comparedNames + len(added) + len(gone))
	if err := st.subscribe(sub, added); err != nil {
		return err
	}
	st.unsubscribe(sub, gone)
	current := st.class.Snapshot().Type(sub.url)
	if isNew {
		// Of a wildcard type the client holds what its version says. Of names it may not: it can have dropped one and asked for it again
		// since, and the version is still that of the response before.
		if sub.wildcard && sub.names.len() == 0 && version == current.Version() {
			sub.answered = true
			sub.noteAcked(st.allResources(sub, current))
			return nil
		}
		st.markAllDirty(sub, current)
		st.requestWarmingEndpoints(sub)
		sub.responseDue = sub.wildcard
		return nil
	}
	for _, name := range added {
		st.markRequested(sub, name)
	}
	if sub.wildcard && !wasWildcard {
		st.markAllDirty(sub, current)
		sub.responseDue = true
	}
	return nil
}

// overhear sees every state-of-the-world request, also those that the loop leaves aside because their nonce is stale. What such a request
// gives up the client has dropped: if a later one asks for it again, it must be sent again.
func (st *stream) observeSotw(req *cache.Request) {
	payload := st.nextPayload()
	st.lock()
	defer st.unlock()
	if st.sotwPayload = payload; st.closed {
		return
	}
	sub := st.subscription(req.GetTypeUrl())
	if sub == nil || sub.wildcard {
		return
	}
	_, gone := sub.diffNames(payload.subscribe)
	st.unsubscribe(sub, gone)
}

// compare lists what a state-of-the-world request has and the subscription has not, and the other way round.
func (sub *subscription) diffNames(wanted []string) (added, gone []string) {
	wanted = slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return name == "*" })
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	for _, name := range wanted {
		if !sub.names.has(name) {
			added = append(added, name)
		}
	}
	sub.names.each(func(name string) bool {
		if _, ok := slices.BinarySearch(wanted, name); !ok {
			gone = append(gone, name)
		}
		return true
	})
	return added, gone
}
