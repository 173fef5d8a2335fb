package serve

import (
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// status describes the stream; nil before its proxy is known.
func (s *stream) status() *configv1.ProxyStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.class == nil {
		return nil
	}
	status := &configv1.ProxyStatus{
		NodeId: s.node.ID, Namespace: s.node.Namespace, Workload: s.node.Name, Class: s.class.ID(), ProxyVersion: s.node.Version,
		XdsServer: s.server.instance, ConnectedAt: timestamppb.New(s.connectedAt),
	}
	if s.peer != nil {
		status.Identity = s.peer.ID.String()
	}
	clean := true
	for _, url := range sortedTypes(s.types) {
		sub := s.types[url]
		clean = clean && sub.clean()
		status.Types = append(status.Types, s.typeStatus(sub))
	}
	// A revision that changes nothing for the proxy counts as acknowledged at once.
	if clean && len(s.types) > 0 {
		s.acked = s.server.engine.Served()
	}
	status.Acked = s.acked
	return status
}

func (s *stream) typeStatus(sub *subscription) *configv1.ProxyTypeStatus {
	snapshot := s.class.Snapshot().Type(sub.url)
	count := len(sub.names) - len(sub.absent)
	if sub.wildcard {
		count = snapshot.Len()
	}
	t := &configv1.ProxyTypeStatus{
		TypeUrl: sub.url, Sent: sub.sent, Acked: sub.acked, Rejection: sub.rejection,
		Resources: uint32(count), BytesSent: sub.bytes, Awaiting: sub.outstanding != nil, //nolint:gosec // counts are small
	}
	if t.Rejection == nil {
		t.Rejection = s.unbuilt(sub)
	}
	return t
}

// unbuilt reports resources of the subscription that xds-server itself could not make: like a rejection, they mean that the proxy does not
// run what the user wrote.
func (s *stream) unbuilt(sub *subscription) *configv1.Rejection {
	var r *configv1.Rejection
	for _, f := range s.class.Failures(sub.url) {
		item, _ := s.class.Snapshot().Type(sub.url).Get(f.Name)
		if f.Name != "" && !sub.wants(f.Name, item) {
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

func sortedTypes(types map[string]*subscription) []string {
	urls := make([]string, 0, len(types))
	for url := range types {
		urls = append(urls, url)
	}
	slices.Sort(urls)
	return urls
}
