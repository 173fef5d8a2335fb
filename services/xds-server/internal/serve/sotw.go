package serve

import (
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"

	"fairlead.dev/services/xds-server/internal/serve/quota"
)

// CreateWatch implements cache.ConfigWatcher. The sotw loop calls it for every request, except those with a stale
// nonce. Responses go to the channel, now or later.
func (st *stream) CreateWatch(req *cache.Request, state cache.Subscription, to chan cache.Response) (func(), error) {
	st.lock()
	defer st.unlock()
	payload := st.sotwPayload
	st.sotwPayload = requestPayload{}
	sub, isNew, err := st.acceptRequest(payload.node, req.GetTypeUrl())
	if sub == nil {
		if err == nil {
			st.noteUnserved(req.GetTypeUrl(), req.GetErrorDetail())
		}
		return nil, err
	}
	if out := sub.outstanding; out != nil && out.nonce == "" {
		// The loop drops a response that it has not sent yet when another request of the type arrives.
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
	req.Reset() // a request that waits for its response needs no more than the type
	req.TypeUrl = sub.url
	sub.open = watch{sotw: req, sotwTo: to}
	st.flush()
	st.server.reports.markChanged(st)
	return sub.cancel, nil
}

// updateSotw applies the names of a request, which always lists all names of the subscription.
func (st *stream) updateSotw(sub *subscription, wanted []string, version string, wildcard, isNew bool) error {
	wasWildcard := sub.wildcard
	sub.wildcard = wildcard
	added, gone := sub.diffNames(wanted)
	st.account.AddWork(len(wanted)/quota.ComparedNames + len(added) + len(gone))
	if err := st.subscribe(sub, added); err != nil {
		return err
	}
	st.unsubscribe(sub, gone)
	current := st.class.Snapshot().Type(sub.url)
	if isNew {
		// For a wildcard type, the version in the first request tells what the client holds. For named resources it
		// does not: the client may have dropped a name and requested it again, and still states the version of the
		// response before.
		if sub.wildcard && sub.names.Len() == 0 && version == current.Version() {
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

// observeSotw is called for every sotw request before CreateWatch, also for those with a stale nonce, which the loop
// ignores. The client has already dropped the resources whose names such a request leaves out; if it requests one
// again, the resource must be sent again.
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

// diffNames lists the names of a sotw request that the subscription lacks, and those of the subscription that the
// request lacks.
func (sub *subscription) diffNames(wanted []string) (added, gone []string) {
	wanted = slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return name == "*" })
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	for _, name := range wanted {
		if !sub.names.Has(name) {
			added = append(added, name)
		}
	}
	for name := range sub.names.All() {
		if _, ok := slices.BinarySearch(wanted, name); !ok {
			gone = append(gone, name)
		}
	}
	return added, gone
}
