package serve

import (
	"slices"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/proto/fairlead/contract"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// sendOrder is the order in which the types of one stream are sent: clusters before everything that refers to them,
// their endpoints right after them, and the name table after the listeners at whose addresses its names point.
// waitsForEarlierTypes and removalsMustWait name types as well: a change of the order must reach them too.
var sendOrder = []string{
	resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType, resource.VirtualHostType,
	resource.SecretType, resource.ExtensionConfigType, ndsv1.NameTableType, contract.ProxyConfigType,
}

// rank is the position of a type in sendOrder; other types come last.
func rank(url string) int {
	if i := slices.Index(sendOrder, url); i >= 0 {
		return i
	}
	return len(sendOrder)
}

// flush hands out every response that can go now, in send order. It is called with mu held after everything that may
// have made a response possible: a request, a change, an ACK, a timeout, a budget that grants this stream bytes.
func (st *stream) flush() {
	if st.ending.Load() {
		return
	}
	waits := false
	for _, sub := range st.types {
		if sub.outstanding != nil {
			continue
		}
		if st.waitsForEarlierTypes(sub) {
			waits = true
			continue
		}
		if !st.respond(sub) {
			return // the budget calls FlushInTurn later
		}
		waits = waits || sub.deferred.Len() > 0 || sub.url == resource.VirtualHostType && sub.outstanding == nil && sub.dirty.Len() > 0
	}
	if st.flushAgain {
		st.flushAgain = false
		st.flush()
		return
	}
	switch {
	case !waits:
		st.waitingSince = time.Time{}
	case st.waitingSince.IsZero(), st.orderTimedOut():
		st.waitingSince = st.server.clock.Now()
		notify.Wake(st.wake)
	}
}

// FlushInTurn implements quota.Waiter: it is called when it is this stream's turn to use bytes.
func (st *stream) FlushInTurn() {
	st.lock()
	defer st.unlock()
	if st.closed {
		return
	}
	st.budgetTurn = true
	st.flush()
	st.budgetTurn = false
}

// flushAfterTimeout is called by Server.handle when the order timeout has passed: what has waited that long is sent
// although the types before it are not acknowledged.
func (st *stream) flushAfterTimeout() {
	st.lock()
	defer st.unlock()
	if st.closed || st.class == nil {
		return
	}
	if st.orderTimedOut() {
		st.server.metrics.unordered.Inc()
	}
	st.flush()
}

// waitsForEarlierTypes reports whether an update must wait for another type ("make before break"):
//
//   - Listeners and routes wait until the client has taken over the clusters that are new to it and that they may
//     refer to. Envoy sends the ACK of clusters when they are warm.
//   - Routes also wait until listeners were sent, and virtual hosts until their route configurations were.
//   - Virtual hosts wait for new clusters one by one: leadsToNewCluster.
//
// First responses never wait, and no response waits longer than the order timeout.
func (st *stream) waitsForEarlierTypes(sub *subscription) bool {
	if !sub.answered || !sub.pending() {
		return false
	}
	switch sub.url {
	case resource.ListenerType, resource.RouteType, resource.VirtualHostType:
	default:
		return false
	}
	hosts := sub.url == resource.VirtualHostType
	for _, other := range st.types {
		switch other.url {
		case resource.ClusterType:
			if !hosts && other.newClusters.Len() > 0 && other.pending() {
				return !st.orderTimedOut()
			}
		case resource.EndpointType:
		case sub.url:
			return false
		default:
			if other.dirty.Len() > 0 && (!hosts || other.url == resource.RouteType) {
				return !st.orderTimedOut()
			}
		}
	}
	return false
}

// leadsToNewCluster reports whether a virtual host routes to a cluster that the client does not have yet.
func (st *stream) leadsToNewCluster(blob *store.Blob) bool {
	cds := st.subscription(resource.ClusterType)
	if cds == nil || cds.newClusters.Len() == 0 || !cds.pending() || st.orderTimedOut() {
		return false
	}
	return slices.ContainsFunc(blob.Clusters, cds.newClusters.Has)
}

func (st *stream) orderTimedOut() bool {
	return !st.waitingSince.IsZero() && st.server.clock.Now().Sub(st.waitingSince) >= st.server.orderTimeout
}

// removalsMustWait reports whether removals of the type must wait: those of clusters until the routes, virtual hosts
// and listeners that may refer to them are replaced, those of endpoints until their clusters are removed.
func (st *stream) removalsMustWait(sub *subscription) bool {
	if sub.url != resource.ClusterType && sub.url != resource.EndpointType {
		return false
	}
	waits := false
	for _, other := range st.types {
		switch other.url {
		case resource.ListenerType, resource.RouteType, resource.VirtualHostType:
			waits = waits || other.pending() && !other.holds(sub.deferredAt)
		case resource.ClusterType:
			waits = waits || sub != other && (other.pending() && !other.holds(sub.deferredAt) || other.deferred.Len() > 0)
		}
	}
	return waits && !st.orderTimedOut()
}

// holds reports whether the client holds everything of the type up to a state.
func (sub *subscription) holds(state plan.Point) bool {
	return state.Revision != nil && sub.held.Revision != nil && sub.held.Generation >= state.Generation
}

// noteNewCluster notes that a dirty cluster is new to the client. It does nothing for other types.
func (st *stream) noteNewCluster(sub *subscription, name string) {
	if sub.url == resource.ClusterType && sub.dirty.Has(name) {
		sub.newClusters.Add(name)
	}
}

// newClustersAnswered is called when the client has acknowledged or rejected a response: its clusters are not new any
// more.
func (sub *subscription) newClustersAnswered(out *response) {
	if sub.newClusters.Len() == 0 {
		return
	}
	for _, blob := range out.blobs {
		sub.newClusters.Remove(blob.Name())
	}
	for _, name := range out.removed {
		sub.newClusters.Remove(name)
	}
}
