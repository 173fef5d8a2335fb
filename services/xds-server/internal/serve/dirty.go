package serve

import (
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/plan"
)

// markDirty notes that a resource may differ from what the client holds. The next flush looks at it.
func (st *stream) markDirty(sub *subscription, name string) {
	if sub.answered && sub.clean() {
		sub.held = st.served
	}
	sub.dirty.add(name)
	if sub.deferred.len() > 0 {
		sub.deferred.remove(name)
	}
}

// markAllDirty marks everything that the subscription covers, and everything that the client may still hold although it
// was told to remove it.
func (st *stream) markAllDirty(sub *subscription, snapshot *plan.TypeSnapshot) {
	if st.markListingDirty(sub, snapshot) {
		return
	}
	mark := func(name string) bool { st.markDirty(sub, name); return true }
	sub.names.each(mark)
	for _, name := range sub.unconfirmedRemovals.list {
		mark(name)
	}
	if sub.url == resource.VirtualHostType {
		st.markAllHostsDirty(sub, snapshot)
		return
	}
	if sub.wildcard {
		snapshot.Scan(func(name string, item plan.Item) bool { return !item.Wildcard || mark(name) })
	}
}

// markListingDirty does the work of markAllDirty for the usual case: the subscription covers exactly what the class
// lists, and nothing is marked yet. The dirty set then shares the listing's names. It reports whether this was the
// case.
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
		sub.held = st.served
	}
	sub.dirty.setShared(l.Names)
	return true
}

// markRequested marks a resource that the client waits for: it is sent, or said to be absent, whatever the client
// holds.
func (st *stream) markRequested(sub *subscription, name string) {
	st.markDirty(sub, name)
	sub.requested.add(name)
	sub.absent.remove(name)
}

// markDirtyIfHeld marks a name if the subscription covers it, and reports whether it does.
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

// markDifferencesDirty marks the names whose resource differs between two snapshots. reclassify calls it with the old
// class and the new one.
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
