package serve

import (
	"maps"
	"slices"
	"strconv"

	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// candidate is a response that respond has collected and may still drop, with what it means for the marked names.
type candidate struct {
	*response
	at plan.Point // the state of the class's snapshot
	// settled names need no other response; deferred, absent and onDemandNames are among them.
	settled, deferred, absent, onDemandNames []string
	// incomplete is true if some dirty names have to wait for a later response.
	incomplete bool
	// answered has the route configurations whose virtual hosts the response contains or removes.
	answered map[string]bool
}

// respond makes the next response of a type, if there is anything to say, and hands it out. It returns false if the stream must wait for the budget; nothing has changed in that case.
func (st *stream) respond(sub *subscription) bool {
	deferRemovals := st.removalsMustWait(sub)
	if sub.dirty.Len() == 0 && !sub.responseDue && (sub.deferred.Len() == 0 || deferRemovals) && !st.hasUnsentHostAnswers(sub) {
		return true
	}
	snapshot := st.class.Snapshot()
	current := snapshot.Type(sub.url)
	st.retryRejectedTogether(sub, current)
	if sub.resendAll && sub.dirty.Len() > 0 {
		st.markAllDirty(sub, current)
	}
	if !deferRemovals {
		for _, name := range sub.deferred.Sorted() {
			sub.dirty.Add(name)
		}
		sub.deferred.Clear()
	}
	c := &candidate{response: &response{revision: snapshot.Revision}, at: snapshot.Point}
	c.stream = st
	if sub.url == resource.VirtualHostType {
		st.collectHosts(sub, current, c)
	} else {
		st.collect(sub, current, c, deferRemovals)
	}
	if !st.delta && !sub.complete() {
		c.removed = nil // a sotw response of this type cannot say that a resource is gone
	}
	out, updated := c.response, c.blobs
	empty := len(out.blobs)+len(out.removed)+len(out.missing) == 0
	if empty && (!sub.responseDue || sub.url == resource.VirtualHostType) {
		st.clearAnswered(sub, c)
		sub.answered = sub.answered || sub.url != resource.VirtualHostType
		return true
	}
	if !st.delta && sub.complete() {
		out.blobs = st.allResources(sub, current)
		updated = sub.unacked(out.blobs)
	}
	out.measure()
	if !st.server.unsent.Take(st, &st.account.Unsent, out.size, !sub.answered, st.budgetTurn) {
		return false
	}
	out.reserved.Store(int64(out.size))
	if out.version = strconv.FormatUint(out.revision.GetSequence(), 10); !st.delta {
		out.version = st.sotwVersion(sub, current)
	}
	st.clearAnswered(sub, c)
	if !c.incomplete && sub.dirty.Len()+sub.deferred.Len() == 0 {
		out.held = st.served
	}
	sub.outstanding, sub.resendAll, sub.answered = out, false, true
	st.outbox.push(sub)
	out.counted = st.server.answers.addResponse(sub.url == resource.EndpointType)
	sub.responseDue = sub.responseDue && sub.url == resource.VirtualHostType && st.awaitsFirstHosts()
	switch sub.url {
	case resource.ClusterType:
		st.resendEndpoints(updated)
	case resource.RouteType:
		st.routeConfigsSent(out, updated)
	case resource.VirtualHostType:
		out.routeConfigs = slices.Sorted(maps.Keys(c.answered))
		st.subscribeMirrors(updated)
	}
	st.remember(sub, c.onDemandNames)
	return true
}

// clearAnswered takes the names that the response answers off the subscription's marks (dirty, requested, absent).
func (st *stream) clearAnswered(sub *subscription, c *candidate) {
	if len(c.settled) == sub.dirty.Len() {
		sub.dirty.Clear()
	} else {
		for _, name := range c.settled {
			sub.dirty.Remove(name)
		}
	}
	if sub.requested.Shares(c.settled) {
		sub.requested.Clear()
	}
	for _, name := range c.settled {
		if sub.requested.Len() == 0 {
			break
		}
		sub.requested.Remove(name)
	}
	for _, blob := range c.blobs {
		if sub.absent.Len() == 0 {
			break
		}
		sub.absent.Remove(blob.Name())
	}
	for _, name := range c.deferred {
		sub.deferred.Add(name)
	}
	for _, name := range c.absent {
		sub.absent.Add(name)
	}
	for name := range c.answered {
		if rc := st.routeConfigs[name]; rc != nil {
			rc.hostsSent, rc.sendAll = true, false
		}
	}
	if len(c.missing) > 0 && sub.url == resource.VirtualHostType {
		for _, name := range st.refusedHosts.Names() {
			st.refundName(name)
		}
		st.refusedHosts.Clear()
	}
	if sub.url == resource.VirtualHostType {
		st.droppedHosts.Clear()
	}
}

// splittable types may be sent in several responses, because the client waits for each of their resources by itself.
// Clusters and listeners may not: after the first response Envoy goes on to the next type, or reports that it is ready.
func (st *stream) splittable(sub *subscription) bool {
	return sub.url == resource.EndpointType || st.delta && (sub.url == resource.RouteType || sub.url == resource.VirtualHostType)
}

// collect adds to the response what each dirty name stands for: a resource, a removal, or nothing. With deferRemovals,
// removals stay in the deferred set unless the client waits for the answer.
func (st *stream) collect(sub *subscription, current *plan.TypeSnapshot, c *candidate, deferRemovals bool) {
	size, chunked := 0, st.splittable(sub)
	if sub.dirty.Shared() && len(sub.rejectedVersions) == 0 {
		if l := current.Listing(""); sub.dirty.Shares(l.Names) && (!chunked || l.Size <= st.server.maxResponseBytes) {
			c.blobs, c.settled = slices.Clip(l.Blobs), slices.Clip(l.Names)
			return
		}
	}
	for _, name := range sub.dirty.Sorted() {
		item, _ := current.Get(name)
		switch {
		case item.Pending:
			c.incomplete = true // the class marks it dirty again once it is known
			continue
		case sub.wants(name, item) && item.Blob != nil:
			if sub.rejectedVersions[name] == item.Blob.Version() {
				break
			}
			if size += item.Blob.Size(); chunked && size > st.server.maxResponseBytes && len(c.blobs) > 0 {
				c.incomplete = true
				return
			}
			c.blobs = append(c.blobs, item.Blob)
			if !item.Wildcard && sub.wildcard {
				c.onDemandNames = append(c.onDemandNames, name)
			}
		case deferRemovals && !sub.requested.Has(name):
			c.deferred = append(c.deferred, name)
			sub.deferredAt = c.at
		default:
			if sub.names.Has(name) {
				c.absent = append(c.absent, name)
				if blob := st.emptyEndpoints(sub, name); blob != nil {
					c.blobs = append(c.blobs, blob)
				}
			}
			c.removed = append(c.removed, name)
		}
		c.settled = append(c.settled, name)
	}
}

// emptyEndpoints returns an empty ClusterLoadAssignment for endpoints that a sotw client waits for and that do not
// exist; nil for anything else. A sotw response cannot say that they are gone. Envoy would keep warming their cluster:
// it neither uses the cluster nor sends the ACK of its response, and the next update of clusters would wait for that
// ACK.
func (st *stream) emptyEndpoints(sub *subscription, name string) *store.Blob {
	if st.delta || sub.url != resource.EndpointType || !sub.requested.Has(name) {
		return nil
	}
	blob, err := st.server.emptyEndpoints.Put(sub.url, name, &endpoint.ClusterLoadAssignment{ClusterName: name})
	if err != nil { // the name is not UTF-8, so that it cannot be sent
		return nil
	}
	return blob
}

// measure sets the size of a response: the bytes of its resources and names.
func (r *response) measure() {
	r.size = 0
	for _, blob := range r.blobs {
		r.size += blob.Size() + len(blob.Name())
	}
	for _, names := range [][]string{r.removed, r.missing} {
		for _, name := range names {
			r.size += len(name)
		}
	}
}

// allResources lists what the subscription covers. Where the current version was rejected, it lists the last version
// that the client has acknowledged: the client would remove a resource that a complete sotw response leaves out.
func (st *stream) allResources(sub *subscription, current *plan.TypeSnapshot) []*store.Blob {
	var blobs []*store.Blob
	take := func(name string, item plan.Item) bool {
		if item.Blob == nil || !sub.wants(name, item) {
			return true
		}
		blob := item.Blob
		if sub.rejectedVersions[name] == blob.Version() {
			blob = sub.ackedBlobs[name]
		}
		if blob != nil {
			blobs = append(blobs, blob)
		}
		return true
	}
	if sub.wildcard {
		current.Scan(take)
		return blobs
	}
	for name := range sub.names.All() {
		item, _ := current.Get(name)
		take(name, item)
	}
	return blobs
}

// unacked lists the blobs that the client has not acknowledged: the dirty ones, and those that have changed without the
// stream having been told yet.
func (sub *subscription) unacked(blobs []*store.Blob) (fresh []*store.Blob) {
	for _, blob := range blobs {
		if sub.ackedBlobs[blob.Name()] != blob {
			fresh = append(fresh, blob)
		}
	}
	return fresh
}

// sotwVersion is the version_info of a sotw response: a hash of everything that the client holds after it.
func (st *stream) sotwVersion(sub *subscription, current *plan.TypeSnapshot) string {
	if sub.wildcard && sub.names.Len() == 0 && len(sub.rejectedVersions) == 0 {
		return current.Version()
	}
	return plan.VersionOf(st.allResources(sub, current))
}
