package subscription

import (
	"maps"
	"slices"
	"strconv"

	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// draft is a response that respond has collected and may still drop, with what it means for the marked names.
type draft struct {
	*Response
	// settled names need no other response; deferred, absent and onDemandNames are among them.
	settled, deferred, absent, onDemandNames []string
	// incomplete is true if some dirty names have to wait for a later response.
	incomplete bool
	// answered has the route configurations whose virtual hosts the response contains or removes.
	answered map[string]bool
}

// respond makes the next response of a type, if there is anything to say, and hands it out. It returns false if there
// is no room for it; nothing has changed in that case.
func (c *Client) respond(sub *subscription, take func(*Response) bool) bool {
	deferRemovals := c.removalsMustWait(sub)
	if sub.dirty.Len() == 0 && !sub.responseDue && (sub.deferred.Len() == 0 || deferRemovals) && !c.hasUnsentHostAnswers(sub) {
		return true
	}
	snapshot := c.class.Snapshot()
	current := snapshot.Type(sub.url)
	c.retryRejectedTogether(sub, current)
	if sub.resendAll && sub.dirty.Len() > 0 {
		c.markAllDirty(sub, current)
	}
	if !deferRemovals {
		for _, name := range sub.deferred.Sorted() {
			sub.dirty.Add(name)
		}
		sub.deferred.Clear()
	}
	d := &draft{Response: &Response{TypeURL: sub.url, First: !sub.answered, Revision: snapshot.Revision, at: snapshot.Point}}
	if sub.url == resource.VirtualHostType {
		c.collectHosts(sub, current, d)
	} else {
		c.collect(sub, current, d, deferRemovals)
	}
	if !c.cfg.Delta && !sub.complete() {
		d.Removed = nil // a sotw response of this type cannot say that a resource is gone
	}
	out, updated := d.Response, d.Blobs
	empty := len(out.Blobs)+len(out.Removed)+len(out.Missing) == 0
	if empty && (!sub.responseDue || sub.url == resource.VirtualHostType) {
		c.clearAnswered(sub, d)
		c.refundOwed(out.owed)
		sub.answered = sub.answered || sub.url != resource.VirtualHostType
		return true
	}
	if !c.cfg.Delta && sub.complete() {
		out.Blobs = c.allResources(sub, current)
		updated = sub.unacked(out.Blobs)
	}
	out.measure()
	if !take(out) {
		return false
	}
	if out.Version = strconv.FormatUint(out.Revision.GetSequence(), 10); !c.cfg.Delta {
		out.Version = c.sotwVersion(sub, current)
	}
	c.clearAnswered(sub, d)
	if !d.incomplete && sub.dirty.Len()+sub.deferred.Len() == 0 {
		out.held = c.served
	}
	sub.outstanding, sub.resendAll, sub.answered = out, false, true
	sub.noteAhead(out, c.served)
	sub.responseDue = sub.responseDue && sub.url == resource.VirtualHostType && c.awaitsFirstHosts()
	switch sub.url {
	case resource.ClusterType:
		c.resendEndpoints(updated)
	case resource.RouteType:
		c.routeConfigsSent(out, updated)
	case resource.VirtualHostType:
		out.routeConfigs = slices.Sorted(maps.Keys(d.answered))
		c.subscribeMirrors(updated)
	}
	c.remember(sub, d.onDemandNames)
	return true
}

// clearAnswered takes the names that the response answers off the subscription's marks (dirty, requested, absent).
func (c *Client) clearAnswered(sub *subscription, d *draft) {
	if len(d.settled) == sub.dirty.Len() {
		sub.dirty.Clear()
	} else {
		for _, name := range d.settled {
			sub.dirty.Remove(name)
		}
	}
	if sub.requested.Shares(d.settled) {
		sub.requested.Clear()
	}
	for _, name := range d.settled {
		if sub.requested.Len() == 0 {
			break
		}
		sub.requested.Remove(name)
	}
	for _, blob := range d.Blobs {
		if sub.absent.Len() == 0 {
			break
		}
		sub.absent.Remove(blob.Name())
	}
	for _, name := range d.deferred {
		sub.deferred.Add(name)
	}
	for _, name := range d.absent {
		sub.absent.Add(name)
	}
	sub.settleOwed(d)
	for name := range d.answered {
		if rc := c.routeConfigs[name]; rc != nil {
			rc.hostsSent, rc.sendAll = true, false
		}
	}
	if len(d.Missing) > 0 && sub.url == resource.VirtualHostType {
		for _, name := range c.refusedHosts.Names() {
			c.refundName(name)
		}
		c.refusedHosts.Clear()
	}
	if sub.url == resource.VirtualHostType {
		c.droppedHosts.Clear()
	}
}

// splittable types may be sent in several responses, because the client waits for each of their resources by itself.
// Clusters and listeners may not: after the first response Envoy goes on to the next type, or reports that it is ready.
func (c *Client) splittable(sub *subscription) bool {
	return sub.url == resource.EndpointType || c.cfg.Delta && (sub.url == resource.RouteType || sub.url == resource.VirtualHostType)
}

// collect adds to the response what each dirty name stands for: a resource, a removal, or nothing. With deferRemovals,
// removals stay in the deferred set unless the client waits for the answer.
func (c *Client) collect(sub *subscription, current *plan.TypeSnapshot, d *draft, deferRemovals bool) {
	size, chunked := 0, c.splittable(sub)
	if sub.dirty.Shared() && len(sub.rejectedVersions) == 0 {
		if l := current.Listing(""); sub.dirty.Shares(l.Names) && (!chunked || l.Size <= c.limits.MaxResponseBytes) {
			d.Blobs, d.settled = slices.Clip(l.Blobs), slices.Clip(l.Names)
			return
		}
	}
	for _, name := range sub.dirty.Sorted() {
		item, _ := current.Get(name)
		switch {
		case item.Pending:
			d.incomplete = true // the class marks it dirty again once it is known
			continue
		case sub.wants(name, item) && item.Blob != nil:
			if sub.rejectedVersions[name] == item.Blob.Version() {
				break
			}
			if size += item.Blob.Size(); chunked && size > c.limits.MaxResponseBytes && len(d.Blobs) > 0 {
				d.incomplete = true
				return
			}
			d.Blobs = append(d.Blobs, item.Blob)
			if !item.Wildcard && sub.wildcard {
				d.onDemandNames = append(d.onDemandNames, name)
			}
		case deferRemovals && !sub.requested.Has(name):
			d.deferred = append(d.deferred, name)
			sub.deferredAt = d.at
		default:
			if sub.names.Has(name) {
				d.absent = append(d.absent, name)
				if blob := c.emptyEndpoints(sub, name); blob != nil {
					d.Blobs = append(d.Blobs, blob)
				}
			}
			d.Removed = append(d.Removed, name)
		}
		d.settled = append(d.settled, name)
	}
}

// emptyEndpoints returns an empty ClusterLoadAssignment for endpoints that a sotw client waits for and that do not
// exist; nil for anything else. A sotw response cannot say that they are gone. Envoy would keep warming their cluster:
// it neither uses the cluster nor sends the ACK of its response, and the next update of clusters would wait for that
// ACK.
func (c *Client) emptyEndpoints(sub *subscription, name string) *store.Blob {
	if c.cfg.Delta || sub.url != resource.EndpointType || !sub.requested.Has(name) {
		return nil
	}
	blob, err := c.cfg.EmptyEndpoints.Put(sub.url, name, &endpoint.ClusterLoadAssignment{ClusterName: name})
	if err != nil { // the name is not UTF-8, so that it cannot be sent
		return nil
	}
	return blob
}

// measure sets the size of a response: the bytes of its resources and names.
func (r *Response) measure() {
	r.Size = 0
	for _, blob := range r.Blobs {
		r.Size += blob.Size() + len(blob.Name())
	}
	for _, names := range [][]string{r.Removed, r.Missing} {
		for _, name := range names {
			r.Size += len(name)
		}
	}
}

// allResources lists what the subscription covers. Where the current version was rejected, it lists the last version
// that the client has acknowledged: the client would remove a resource that a complete sotw response leaves out.
func (c *Client) allResources(sub *subscription, current *plan.TypeSnapshot) []*store.Blob {
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
func (c *Client) sotwVersion(sub *subscription, current *plan.TypeSnapshot) string {
	if sub.wildcard && sub.names.Len() == 0 && len(sub.rejectedVersions) == 0 {
		return current.Version()
	}
	return plan.VersionOf(c.allResources(sub, current))
}
