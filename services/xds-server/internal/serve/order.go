package serve

import (
	"slices"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/store"
)

// flush hands out every response that can go now, in order. It is called with mu held after anything that may have made one possible.
func (st *stream) flush() {
	if st.ending.Load() {
		return
	}
	waits := false
	for _, sub := range st.types {
		if !sub.open.isOpen() || sub.outstanding != nil {
			continue
		}
		if st.waitsForEarlierTypes(sub) {
			waits = true
			continue
		}
		if !st.respond(sub) {
			return // the budget calls again
		}
		waits = waits || sub.deferred.len() > 0 || sub.url == resource.VirtualHostType && sub.outstanding == nil && sub.dirty.len() > 0
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
		select {
		case st.wake <- struct{}{}:
		default:
		}
	}
}

// resume is flush for a stream whose turn it is to use the budget.
func (st *stream) flushInTurn() {
	st.lock()
	defer st.unlock()
	if st.closed {
		return
	}
	st.budgetTurn = true
	st.flush()
	st.budgetTurn = false
}

// retry sends what has waited too long for what goes before it.
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

// gated reports whether an update must wait for the types before it: listeners and routes until clusters that are new to the client, which
// they may refer to, were taken over (Envoy holds the ACK of clusters back until they are warm), routes also until listeners were sent,
// virtual hosts until their route configurations were. For clusters virtual hosts wait one by one, see early. First responses never wait, and
// nothing waits longer than the order timeout.
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
			if !hosts && other.newClusters.len() > 0 && other.pending() {
				return !st.orderTimedOut()
			}
		case resource.EndpointType:
		case sub.url:
			return false
		default:
			if other.dirty.len() > 0 && (!hosts || other.url == resource.RouteType) {
				return !st.orderTimedOut()
			}
		}
	}
	return false
}

// early reports whether a virtual host leads to a cluster that the client does not have yet.
func (st *stream) leadsToNewCluster(blob *store.Blob) bool {
	cds := st.subscription(resource.ClusterType)
	if cds == nil || cds.newClusters.len() == 0 || !cds.pending() || st.orderTimedOut() {
		return false
	}
	return slices.ContainsFunc(blob.Clusters, cds.newClusters.has)
}

func (st *stream) orderTimedOut() bool {
	return !st.waitingSince.IsZero() && st.server.clock.Now().Sub(st.waitingSince) >= st.server.orderTimeout
}

// referred reports whether removals of the type must wait: clusters until routes, virtual hosts and listeners that may have referred to
// them are replaced, endpoints until their clusters are gone.
func (st *stream) removalsMustWait(sub *subscription) bool {
	if sub.url != resource.ClusterType && sub.url != resource.EndpointType {
		return false
	}
	waits := false
	for _, other := range st.types {
		switch other.url {
		case resource.ListenerType, resource.RouteType, resource.VirtualHostType:
			waits = waits || other.pending() && !other.holdsRevision(sub.deferredAt)
		case resource.ClusterType:
			waits = waits || sub != other && (other.pending() && !other.holdsRevision(sub.deferredAt) || other.deferred.len() > 0)
		}
	}
	return waits && !st.orderTimedOut()
}

// reached reports whether the client holds everything of the type up to a revision.
func (sub *subscription) holdsRevision(revision *configv1.Revision) bool {
	return revision != nil && sub.heldRevision != nil && sub.heldRevision.GetEpoch() == revision.GetEpoch() && sub.heldRevision.GetSequence() >= revision.GetSequence()
}

// arrives notes that a cluster is new to the client.
func (st *stream) noteNewCluster(sub *subscription, name string) {
	if sub.url == resource.ClusterType && sub.dirty.has(name) {
		sub.newClusters.add(name)
	}
}

// arrived notes that the client was given clusters it did not have, and has said what became of them.
func (sub *subscription) newClustersAnswered(out *response) {
	if sub.newClusters.len() == 0 {
		return
	}
	for _, blob := range out.blobs {
		sub.newClusters.remove(blob.Name())
	}
	for _, name := range out.removed {
		sub.newClusters.remove(name)
	}
}

// sendOrder of types on one stream: clusters before what refers to them, endpoints right after their clusters, and names after the listeners
// at the addresses they stand for.
var sendOrder = []string{
	resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType, resource.VirtualHostType,
	resource.SecretType, resource.ExtensionConfigType, ndsv1.NameTableType,
}

// rank is a type's place in the order; types that it does not name come last.
func rank(url string) int {
	if i := slices.Index(sendOrder, url); i >= 0 {
		return i
	}
	return len(sendOrder)
}
