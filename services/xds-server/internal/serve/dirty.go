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
	sub.dirty.Add(name)
	if sub.deferred.Len() > 0 {
		sub.deferred.Remove(name)
	}
}

// markAllDirty marks everything that the subscription covers, and everything that the client may still hold although it
// was told to remove it.
func (st *stream) markAllDirty(sub *subscription, snapshot *plan.TypeSnapshot) {
	if st.markListingDirty(sub, snapshot) {
		return
	}
	mark := func(name string) bool { st.markDirty(sub, name); return true }
	for name := range sub.names.All() {
		mark(name)
	}
	for _, name := range sub.unconfirmedRemovals.Names() {
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
		sub.held = st.served
	}
	sub.dirty.SetShared(l.Names)
	return true
}

// markRequested marks a resource that the client waits for: it is sent, or said to be absent, whatever the client
// holds.
func (st *stream) markRequested(sub *subscription, name string) {
	st.markDirty(sub, name)
	sub.requested.Add(name)
	sub.absent.Remove(name)
}

// markDirtyIfHeld marks a name if the subscription covers it, and reports whether it does.
func (st *stream) markDirtyIfHeld(sub *subscription, name string) bool {
	switch {
	case sub.url == resource.VirtualHostType:
		return st.markHostDirty(sub, name)
	case sub.wildcard || sub.names.Has(name):
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
