package serve

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/serve/quota"
)

// noteRefusal is called by quotas for each refusal.
func (s *Server) noteRefusal(r quota.Refusal) {
	s.metrics.refused.WithLabelValues(string(r.Budget)).Inc()
	s.refusals.Add(r)
}

// Refusals lists the streams that were refused in the last ten minutes because their identity uses too much, sorted by
// identity and node id.
func (s *Server) Refusals() []*configv1.Refusal {
	var out []*configv1.Refusal
	for _, k := range s.refusals.List() {
		out = append(out, &configv1.Refusal{
			NodeId: k.NodeID, Identity: k.Identity, Budget: string(k.Budget), Reason: k.Reason, Count: k.Count, At: timestamppb.New(k.At),
			XdsServer: s.instance,
		})
	}
	slices.SortFunc(out, func(a, b *configv1.Refusal) int {
		return cmp.Or(cmp.Compare(a.GetIdentity(), b.GetIdentity()), cmp.Compare(a.GetNodeId(), b.GetNodeId()),
			cmp.Compare(a.GetBudget(), b.GetBudget()))
	})
	return out
}

// NewRefusals returns what Refusals does if there is a new one since the last call, or if all is true; nil otherwise.
// Only the reporter calls it.
func (s *Server) NewRefusals(all bool) *configv1.Refusals {
	fresh := s.refusals.TakeChanged()
	if !fresh && !all {
		return nil
	}
	found := s.Refusals()
	if !fresh && len(found) == 0 {
		return nil
	}
	return &configv1.Refusals{Refusals: found}
}
