package serve

import (
	"slices"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// status describes the stream; nil before its proxy is known.
func (s *stream) status() *configv1.ProxyStatus {
	s.lock()
	defer s.unlock()
	if s.closed || s.class == nil {
		return nil
	}
	status := &configv1.ProxyStatus{
		NodeId: s.node.ID, Namespace: s.node.Namespace, Workload: s.node.Name, Class: s.class.ID(), ProxyVersion: s.node.Version,
		XdsServer: s.server.instance, ConnectedAt: timestamppb.New(s.connectedAt),
		Identity: s.node.Identity, Unverified: !s.verified,
	}
	clean := len(s.types) > 0
	// A revision that changes nothing for the proxy counts as acknowledged at once.
	acked := s.upTo
	for _, sub := range s.types {
		if sub.acked == nil && sub.sent == nil && sub.clean() && s.held(sub) > 0 {
			sub.acked = s.upTo // it came back with all that it should have
		}
		status.Types = append(status.Types, s.typeStatus(sub))
		if sub.clean() {
			continue
		}
		clean = false
		if base := sub.base; base != nil {
			acked = older(acked, base)
		} else {
			acked = s.acked
		}
	}
	if len(s.types) > 0 {
		s.acked = acked
	}
	slices.SortFunc(status.Types, func(a, b *configv1.ProxyTypeStatus) int { return strings.Compare(a.GetTypeUrl(), b.GetTypeUrl()) })
	status.Acked, status.Settled = s.acked, clean
	return status
}

// older returns the revision that was served first.
func older(a, b *configv1.Revision) *configv1.Revision {
	if a == nil || b == nil {
		return nil
	}
	if a.GetEpoch() == b.GetEpoch() && a.GetSequence() < b.GetSequence() {
		return a
	}
	return b
}

func (s *stream) typeStatus(sub *subscription) *configv1.ProxyTypeStatus {
	t := &configv1.ProxyTypeStatus{
		TypeUrl: sub.url, Sent: sub.sent, Acked: sub.acked, Rejection: sub.rejection,
		Resources: uint32(s.held(sub)), BytesSent: sub.bytes, Awaiting: sub.outstanding != nil, //nolint:gosec // counts are small
	}
	if sub.outstanding != nil && sub.outstanding.nonce != "" {
		t.AwaitingSince = timestamppb.New(sub.outstanding.sentAt)
	}
	for _, waiting := range []*nameSet{&sub.dirty, &sub.deferred} {
		t.Pending += uint32(waiting.len()) //nolint:gosec // as above
		t.PendingNames = append(t.PendingNames, waiting.list[:min(waiting.len(), maxPendingNames-len(t.PendingNames))]...)
	}
	if t.Rejection == nil {
		t.Rejection = s.unbuilt(sub)
	}
	return t
}

// maxPendingNames is how many of the names that wait a status tells.
const maxPendingNames = 10

// held counts what the client holds of a type.
func (s *stream) held(sub *subscription) int {
	asked := sub.names.len() - sub.absent.len()
	current := s.class.Snapshot().Type(sub.url)
	switch {
	case sub.url == resource.VirtualHostType && len(s.byName) > 0:
		// The client holds the virtual hosts of nearly all of its class's route configurations.
		return current.Len() + asked
	case sub.wildcard && sub.names.len() > 0 && s.onDemand():
		return current.Len() + asked
	case sub.wildcard:
		return current.Len()
	default:
		return asked
	}
}

// unbuilt reports resources of the subscription that xds-server itself could not make: like a rejection, they mean that the proxy does not
// run what the user wrote.
func (s *stream) unbuilt(sub *subscription) *configv1.Rejection {
	var r *configv1.Rejection
	for _, f := range s.class.Failures(sub.url) {
		item, _ := s.class.Snapshot().Type(sub.url).Get(f.Name)
		if f.Name != "" && !s.covers(sub, f.Name, item) {
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
