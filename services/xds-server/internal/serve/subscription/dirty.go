package subscription

import (
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// markDirty notes that a resource may differ from what the client holds. The next flush looks at it.
func (c *Client) markDirty(sub *subscription, name string) {
	if sub.answered && sub.clean() {
		sub.held = c.served
	}
	sub.dirty.Add(name)
	if sub.deferred.Len() > 0 {
		sub.deferred.Remove(name)
	}
}

// markAllDirty marks everything that the subscription covers, and everything that the client may still hold although it
// was told to remove it.
func (c *Client) markAllDirty(sub *subscription, snapshot *plan.TypeSnapshot) {
	if c.markListingDirty(sub, snapshot) {
		return
	}
	mark := func(name string) bool { c.markDirty(sub, name); return true }
	for name := range sub.names.All() {
		mark(name)
	}
	for _, name := range sub.unconfirmedRemovals.Names() {
		mark(name)
	}
	if sub.url == resource.VirtualHostType {
		c.markAllHostsDirty(sub, snapshot)
		return
	}
	if sub.wildcard {
		snapshot.Scan(func(name string, item plan.Item) bool { return !item.Wildcard || mark(name) })
	}
}

// markListingDirty does the work of markAllDirty for the usual case: the subscription covers exactly what the class
// lists, and nothing is marked yet. The dirty set then shares the listing's names. It reports whether this was the
// case.
func (c *Client) markListingDirty(sub *subscription, snapshot *plan.TypeSnapshot) bool {
	if sub.url == resource.VirtualHostType || sub.dirty.Len()+sub.unconfirmedRemovals.Len()+sub.deferred.Len() > 0 {
		return false
	}
	if sub.wildcard && sub.names.Len() > 0 || !sub.wildcard && !sub.names.Shared() {
		return false
	}
	l := snapshot.Listing("")
	if !sub.wildcard && !sub.names.Shares(l.Names) {
		return false
	}
	if sub.answered && sub.clean() {
		sub.held = c.served
	}
	sub.dirty.SetShared(l.Names)
	return true
}

// markRequested marks a resource that the client waits for: it is sent, or said to be absent, whatever the client
// holds.
func (c *Client) markRequested(sub *subscription, name string) {
	c.markDirty(sub, name)
	sub.requested.Add(name)
	sub.absent.Remove(name)
}

// markDirtyIfHeld marks a name if the subscription covers it, and reports whether it does.
func (c *Client) markDirtyIfHeld(sub *subscription, name string) bool {
	switch {
	case sub.url == resource.VirtualHostType:
		return c.markHostDirty(sub, name)
	case sub.wildcard || sub.names.Has(name):
		c.markDirty(sub, name)
		return true
	default:
		return false
	}
}

// markChanged is markDirtyIfHeld for a change of the class, unless the client was already sent what has changed: the
// class publishes its snapshot first and tells of the changes later, and a request may come between the two.
func (c *Client) markChanged(sub *subscription, name string) (dirty bool) {
	if len(sub.ahead) > 0 {
		if item, _ := c.class.Snapshot().Type(sub.url).Get(name); sub.sentAhead(name, item.Blob) {
			return false
		}
	}
	return c.markDirtyIfHeld(sub, name)
}

// noteAhead keeps a response that was made from a newer state than that of which the client was told.
func (sub *subscription) noteAhead(out *Response, told plan.Point) {
	if out.at.Generation > told.Generation {
		sub.ahead = append(sub.ahead, out)
	}
}

// forgetAhead forgets responses whose state was told.
func (sub *subscription) forgetAhead(told plan.Point) {
	for len(sub.ahead) > 0 && sub.ahead[0].at.Generation <= told.Generation {
		sub.ahead = sub.ahead[1:]
	}
}

// sentAhead reports whether the last response of ahead that mentions the name has this version of the resource, or its
// removal if blob is nil.
func (sub *subscription) sentAhead(name string, blob *store.Blob) bool {
	for _, out := range slices.Backward(sub.ahead) {
		if sent, mentioned := out.find(name); mentioned {
			return sent == blob
		}
	}
	return false
}

// markDifferencesDirty marks the names whose resource differs between two snapshots. reclassify calls it with the old
// class and the new one.
func (c *Client) markDifferencesDirty(sub *subscription, before, after *plan.TypeSnapshot) {
	compare := func(name string) bool {
		a, _ := before.Get(name)
		b, _ := after.Get(name)
		if a.Blob != b.Blob || a.Wildcard != b.Wildcard || a.Pending != b.Pending {
			c.markDirtyIfHeld(sub, name)
		}
		if a.Blob == nil && b.Blob != nil {
			c.noteNewCluster(sub, name)
		}
		return true
	}
	for name := range sub.names.All() {
		compare(name)
	}
	if !sub.wildcard && sub.url != resource.VirtualHostType {
		return
	}
	for _, snapshot := range []*plan.TypeSnapshot{before, after} {
		snapshot.Scan(func(name string, item plan.Item) bool { return !item.Wildcard || compare(name) })
	}
}
