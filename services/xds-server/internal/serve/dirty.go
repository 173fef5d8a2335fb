package serve

import (
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
)

// touch marks a name as possibly different from what the client holds.
func (st *stream) markDirty(sub *subscription, name string) {
	if sub.answered && sub.clean() {
		sub.heldRevision = st.servedRevision
	}
	sub.dirty.add(name)
	if sub.deferred.len() > 0 {
		sub.deferred.remove(name)
	}
}

// touchAll marks all that the subscription covers, and what the client may hold although it should not.
func (st *stream) markAllDirty(sub *subscription, snapshot *plan.TypeSnapshot) {
	if st.markListingDirty(sub, snapshot) {
		return
	}
	touch := func(name string) bool { st.markDirty(sub, name); return true }
	sub.names.each(touch)
	for _, name := range sub.unconfirmedRemovals.list {
		touch(name)
	}
	if sub.url == resource.VirtualHostType {
		st.markAllHostsDirty(sub, snapshot)
		return
	}
	if sub.wildcard {
		snapshot.Scan(func(name string, item plan.Item) bool { return !item.Wildcard || touch(name) })
	}
}

// touchListing is touchAll for the common case, in which all that the subscription covers is what a listing has: it takes that over as it is.
func (st *stream) markListingDirty(sub *subscription, snapshot *plan.TypeSnapshot) bool {
	if sub.url == resource.VirtualHostType || sub.dirty.len()+sub.unconfirmedRemovals.len()+sub.deferred.len() > 0 {
		return false
	}
	if sub.wildcard && sub.names.len() > 0 || !sub.wildcard && !sub.names.shared {
		return false
	}
	l := snapshot.Listing("")
	if !sub.wildcard && !sub.names.shares(l.Names) {
		return false
	}
	if sub.answered && sub.clean() {
		sub.heldRevision = st.servedRevision
	}
	sub.dirty.setShared(l.Names)
	return true
}

// ask marks a name that the client waits for: it is sent or said to be absent, whatever the client is thought to hold.
func (st *stream) markRequested(sub *subscription, name string) {
	st.markDirty(sub, name)
	sub.requested.add(name)
	sub.absent.remove(name)
}

// touchIfHeld marks a name if the subscription may have to do with it, and reports whether.
func (st *stream) markDirtyIfHeld(sub *subscription, name string) bool {
	switch {
	case sub.url == resource.VirtualHostType:
		return st.markHostDirty(sub, name)
	case sub.wildcard || sub.names.has(name):
		st.markDirty(sub, name)
		return true
	default:
		return false
	}
}

// touchDifferent marks what one snapshot has and another has not, or not in the same version.
func (st *stream) markDifferencesDirty(sub *subscription, before, after *plan.TypeSnapshot) {
	compare := func(name string) bool {
		a, _ := before.Get(name)
		b, _ := after.Get(name)
		if a.Blob != b.Blob || a.Wildcard != b.Wildcard || a.Pending != b.Pending {
			st.markDirtyIfHeld(sub, name)
		}
		if a.Blob == nil && b.Blob != nil {
			st.noteNewCluster(sub, name)
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
