package subscription

import (
	"slices"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/nameset"
)

// Status describes the subscriptions, sorted by type; acked is the revision up to which the client holds everything,
// and settled is true if that is all there is.
func (c *Client) Status() (types []*configv1.ProxyTypeStatus, acked *configv1.Revision, settled bool) {
	settled = len(c.types) > 0
	// A revision that changes nothing for the proxy counts as acknowledged at once.
	holds := c.served
	for _, sub := range c.types {
		if sub.acked == nil && sub.sent == nil && sub.clean() && c.countHeld(sub) > 0 {
			sub.acked = c.served.Revision // the client reconnected and holds everything already
		}
		types = append(types, c.typeStatus(sub))
		if sub.clean() {
			continue
		}
		settled = false
		if sub.held.Revision != nil {
			holds = older(holds, sub.held)
		} else {
			holds = c.acked
		}
	}
	if len(c.types) > 0 {
		c.acked = holds
	}
	slices.SortFunc(types, func(a, b *configv1.ProxyTypeStatus) int { return strings.Compare(a.GetTypeUrl(), b.GetTypeUrl()) })
	return types, c.acked.Revision, settled
}

// older returns the state that was served first.
func older(a, b plan.Point) plan.Point {
	if a.Generation < b.Generation {
		return a
	}
	return b
}

func (c *Client) typeStatus(sub *subscription) *configv1.ProxyTypeStatus {
	t := &configv1.ProxyTypeStatus{
		TypeUrl: sub.url, Sent: sub.sent, Acked: sub.acked, Rejection: sub.rejection,
		Resources: uint32(c.countHeld(sub)), BytesSent: sub.bytes, Awaiting: sub.outstanding != nil, //nolint:gosec // counts are small
	}
	if sub.outstanding != nil && sub.outstanding.nonce != "" {
		t.AwaitingSince = timestamppb.New(sub.outstanding.SentAt)
	}
	for _, waiting := range []*nameset.Set{&sub.dirty, &sub.deferred} {
		t.Pending += uint32(waiting.Len()) //nolint:gosec // counts are small
		t.PendingNames = append(t.PendingNames, waiting.Names()[:min(waiting.Len(), maxPendingNames-len(t.PendingNames))]...)
	}
	if t.Rejection == nil {
		t.Rejection = c.unbuilt(sub)
	}
	return t
}

// maxPendingNames bounds the names of waiting resources in a status.
const maxPendingNames = 10

// countHeld counts the resources of a type that the client holds.
func (c *Client) countHeld(sub *subscription) int {
	asked := sub.names.Len() - sub.absent.Len()
	current := c.class.Snapshot().Type(sub.url)
	switch {
	case sub.url == resource.VirtualHostType && len(c.routeConfigs) > 0:
		// The client holds the virtual hosts of nearly all route configurations of its class.
		return current.Len() + asked
	case sub.wildcard && sub.names.Len() > 0 && c.class.OnDemand():
		return current.Len() + asked
	case sub.wildcard:
		return current.Len()
	default:
		return asked
	}
}

// unbuilt returns a rejection for resources of the subscription that could not be built: as after a NACK, the proxy
// does not run what the user wrote.
func (c *Client) unbuilt(sub *subscription) *configv1.Rejection {
	var r *configv1.Rejection
	for _, f := range c.class.Failures(sub.url) {
		item, _ := c.class.Snapshot().Type(sub.url).Get(f.Name)
		if f.Name != "" && !c.covers(sub, f.Name, item) {
			continue
		}
		if r == nil {
			message := "xds-server could not build it: " + f.Err.Error()
			r = &configv1.Rejection{Message: message[:min(len(message), maxRejectionBytes)], Revision: f.Revision}
		}
		if f.Name != "" {
			r.ResourceNames = append(r.ResourceNames, f.Name)
		}
	}
	return r
}
