package subscription

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/proto/fairlead/contract"
	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/store"
)

// sendOrder is the order in which the types of one client are sent: clusters before everything that refers to them,
// their endpoints right after them, and the name table after the listeners at whose addresses its names point.
// waitsForEarlierTypes and removalsMustWait name types as well: a change of the order must reach them too.
var sendOrder = []string{
	resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType, resource.VirtualHostType,
	resource.SecretType, resource.ExtensionConfigType, ndsv1.NameTableType, contract.ProxyConfigType,
	contract.SignedBundleType,
}

// rank is the position of a type in sendOrder; other types come last.
func rank(url string) int {
	if i := slices.Index(sendOrder, url); i >= 0 {
		return i
	}
	return len(sendOrder)
}

// compareTypes orders types as they are sent.
func compareTypes(a, b string) int {
	return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a, b))
}

// Flush hands out every response that can go now, in send order, to take. take returns false if there is no room for a
// response: then Flush stops, and the caller calls it again when there is. Otherwise it is called after everything that
// may have made a response possible: a request, a change, an ACK, a timeout. wait is true if a response begins to wait
// for other types: then Flush must be called again when the order timeout has passed.
func (c *Client) Flush(now time.Time, take func(*Response) bool) (wait bool) {
	c.now = now
	waits := false
	for _, sub := range c.types {
		if sub.outstanding != nil {
			continue
		}
		if c.waitsForEarlierTypes(sub) {
			waits = true
			continue
		}
		if !c.respond(sub, take) {
			return false
		}
		waits = waits || sub.deferred.Len() > 0 || sub.url == resource.VirtualHostType && sub.outstanding == nil && sub.dirty.Len() > 0
	}
	if c.flushAgain {
		c.flushAgain = false
		return c.Flush(now, take)
	}
	switch {
	case !waits:
		c.waitingSince = time.Time{}
	case c.waitingSince.IsZero(), c.orderTimedOut():
		c.waitingSince = now
		return true
	}
	return false
}

// Overdue reports whether a response has waited for other types for as long as it may: the next Flush sends it.
func (c *Client) Overdue(now time.Time) bool {
	c.now = now
	return c.orderTimedOut()
}

// waitsForEarlierTypes reports whether an update must wait for another type ("make before break"):
//
//   - Listeners and routes wait until the client has taken over the clusters that are new to it and that they may
//     refer to. Envoy sends the ACK of clusters when they are warm.
//   - Routes also wait until listeners were sent, and virtual hosts until their route configurations were.
//   - Virtual hosts wait for new clusters one by one: leadsToNewCluster.
//
// First responses never wait, and no response waits longer than the order timeout.
func (c *Client) waitsForEarlierTypes(sub *subscription) bool {
	if !sub.answered || !sub.pending() {
		return false
	}
	switch sub.url {
	case resource.ListenerType, resource.RouteType, resource.VirtualHostType:
	default:
		return false
	}
	hosts := sub.url == resource.VirtualHostType
	for _, other := range c.types {
		switch other.url {
		case resource.ClusterType:
			if !hosts && other.newClusters.Len() > 0 && other.pending() {
				return !c.orderTimedOut()
			}
		case resource.EndpointType:
		case sub.url:
			return false
		default:
			if other.dirty.Len() > 0 && (!hosts || other.url == resource.RouteType) {
				return !c.orderTimedOut()
			}
		}
	}
	return false
}

// leadsToNewCluster reports whether a virtual host routes to a cluster that the client does not have yet.
func (c *Client) leadsToNewCluster(blob *store.Blob) bool {
	cds := c.subscription(resource.ClusterType)
	if cds == nil || cds.newClusters.Len() == 0 || !cds.pending() || c.orderTimedOut() {
		return false
	}
	return slices.ContainsFunc(blob.Clusters, cds.newClusters.Has)
}

func (c *Client) orderTimedOut() bool {
	return !c.waitingSince.IsZero() && c.now.Sub(c.waitingSince) >= c.limits.OrderTimeout
}

// removalsMustWait reports whether removals of the type must wait: those of clusters until the routes, virtual hosts
// and listeners that may refer to them are replaced, those of endpoints until their clusters are removed.
func (c *Client) removalsMustWait(sub *subscription) bool {
	if sub.url != resource.ClusterType && sub.url != resource.EndpointType {
		return false
	}
	waits := false
	for _, other := range c.types {
		switch other.url {
		case resource.ListenerType, resource.RouteType, resource.VirtualHostType:
			waits = waits || other.pending() && !other.holds(sub.deferredAt)
		case resource.ClusterType:
			waits = waits || sub != other && (other.pending() && !other.holds(sub.deferredAt) || other.deferred.Len() > 0)
		}
	}
	return waits && !c.orderTimedOut()
}

// holds reports whether the client holds everything of the type up to a state.
func (sub *subscription) holds(state plan.Point) bool {
	return state.Revision != nil && sub.held.Revision != nil && sub.held.Generation >= state.Generation
}

// noteNewCluster notes that a cluster that is dirty or on its way is new to the client. It does nothing for other
// types.
func (c *Client) noteNewCluster(sub *subscription, name string) {
	if sub.url != resource.ClusterType {
		return
	}
	if sent, _ := sub.outstanding.find(name); sent != nil || sub.dirty.Has(name) {
		sub.newClusters.Add(name)
	}
}

// newClustersAnswered is called when the client has acknowledged or rejected a response: its clusters are not new any
// more.
func (sub *subscription) newClustersAnswered(out *Response) {
	if sub.newClusters.Len() == 0 {
		return
	}
	for _, blob := range out.Blobs {
		sub.newClusters.Remove(blob.Name())
	}
	for _, name := range out.Removed {
		sub.newClusters.Remove(name)
	}
}
