package serve

import (
	"slices"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/serve/nameset"
)

// status describes the stream; nil before it has sent its node.
func (st *stream) status() *configv1.ProxyStatus {
	st.lock()
	defer st.unlock()
	if st.closed || st.class == nil {
		return nil
	}
	status := &configv1.ProxyStatus{
		NodeId: st.node.ID, Namespace: st.node.Namespace, Workload: st.node.Name, Class: st.class.ID(), ProxyVersion: st.node.Version,
		AgentVersion: st.node.AgentVersion, Revision: st.node.Revision,
		XdsServer: st.server.instance, ConnectedAt: timestamppb.New(st.connectedAt),
		Identity: st.node.Identity, Unverified: !st.verified, Health: st.workloadHealth(), Registration: st.registration(),
	}
	clean := len(st.types) > 0
	// A revision that changes nothing for the proxy counts as acknowledged at once.
	acked := st.served
	for _, sub := range st.types {
		if sub.acked == nil && sub.sent == nil && sub.clean() && st.countHeld(sub) > 0 {
			sub.acked = st.served.Revision // the client reconnected and holds everything already
		}
		status.Types = append(status.Types, st.typeStatus(sub))
		if sub.clean() {
			continue
		}
		clean = false
		if sub.held.Revision != nil {
			acked = older(acked, sub.held)
		} else {
			acked = st.acked
		}
	}
	if len(st.types) > 0 {
		st.acked = acked
	}
	slices.SortFunc(status.Types, func(a, b *configv1.ProxyTypeStatus) int { return strings.Compare(a.GetTypeUrl(), b.GetTypeUrl()) })
	status.Acked, status.Settled = st.acked.Revision, clean
	return status
}

// older returns the state that was served first.
func older(a, b plan.Point) plan.Point {
	if a.Generation < b.Generation {
		return a
	}
	return b
}

func (st *stream) typeStatus(sub *subscription) *configv1.ProxyTypeStatus {
	t := &configv1.ProxyTypeStatus{
		TypeUrl: sub.url, Sent: sub.sent, Acked: sub.acked, Rejection: sub.rejection,
		Resources: uint32(st.countHeld(sub)), BytesSent: sub.bytes, Awaiting: sub.outstanding != nil, //nolint:gosec // counts are small
	}
	if sub.outstanding != nil && sub.outstanding.nonce != "" {
		t.AwaitingSince = timestamppb.New(sub.outstanding.sentAt)
	}
	for _, waiting := range []*nameset.Set{&sub.dirty, &sub.deferred} {
		t.Pending += uint32(waiting.Len()) //nolint:gosec // counts are small
		t.PendingNames = append(t.PendingNames, waiting.Names()[:min(waiting.Len(), maxPendingNames-len(t.PendingNames))]...)
	}
	if t.Rejection == nil {
		t.Rejection = st.unbuilt(sub)
	}
	return t
}

// maxPendingNames bounds the names of waiting resources in a status.
const maxPendingNames = 10

// countHeld counts the resources of a type that the client holds.
func (st *stream) countHeld(sub *subscription) int {
	asked := sub.names.Len() - sub.absent.Len()
	current := st.class.Snapshot().Type(sub.url)
	switch {
	case sub.url == resource.VirtualHostType && len(st.routeConfigs) > 0:
		// The client holds the virtual hosts of nearly all route configurations of its class.
		return current.Len() + asked
	case sub.wildcard && sub.names.Len() > 0 && st.onDemand():
		return current.Len() + asked
	case sub.wildcard:
		return current.Len()
	default:
		return asked
	}
}

// unbuilt returns a rejection for resources of the subscription that could not be built: as after a NACK, the proxy
// does not run what the user wrote.
func (st *stream) unbuilt(sub *subscription) *configv1.Rejection {
	var r *configv1.Rejection
	for _, f := range st.class.Failures(sub.url) {
		item, _ := st.class.Snapshot().Type(sub.url).Get(f.Name)
		if f.Name != "" && !st.covers(sub, f.Name, item) {
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
