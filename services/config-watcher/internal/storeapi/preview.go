package storeapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/consul"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
)

const (
	verbPreview  = "preview"
	kindRegistry = "Registry"
	// Bounds of an answer.
	maxPreviewed = 10_000
	maxUnmatched = 10_000
	maxFound     = 1000
)

// PreviewRegistry implements ConfigStoreService. The call is in the audit log before it takes effect, without the
// declaration.
func (s *Server) PreviewRegistry(ctx context.Context, req *configv1.PreviewRegistryRequest) (
	_ *configv1.PreviewRegistryResponse, err error,
) {
	about := object.Key{Kind: kindRegistry, Name: cmp.Or(req.GetName(), "?")}
	defer func() { s.refused(ctx, verbPreview, []object.Key{about}, err) }()
	identity, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.access.IsAdmin(identity); err != nil {
		return nil, deniedStatus(err)
	}
	if err := s.audit.Do(ctx, verbPreview, about); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	conflicts := map[string]bool{"domain": true}
	owners := s.owners(registry.SourcePrefix + req.GetName())
	preview, err := s.previews.Make(ctx, req.GetName(), req.GetDeclaration(), func(host string) string {
		owner := owners[host]
		conflicts["host "+host] = owner != ""
		return owner
	})
	var problems object.Problems
	switch {
	case err == nil:
	case errors.As(err, &problems):
		return nil, invalid(problems)
	case errors.Is(err, consul.ErrBusy):
		return nil, status.Error(codes.ResourceExhausted, err.Error())
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	default:
		return nil, status.Error(codes.FailedPrecondition, object.Cut(fmt.Sprintf("the registry cannot be read: %v", err), maxMessage))
	}
	return previewOf(preview, conflicts), nil
}

// owners are the objects that have hosts, by host, without those of one source. Of several the older one counts.
func (s *Server) owners(but string) map[string]string {
	var claimants []*object.Object
	for _, versions := range s.elsewhere.All() {
		if o := versions[0]; o.Source != but && len(normalise.HostsOf(o, s.domain)) > 0 {
			claimants = append(claimants, o)
		}
	}
	slices.SortStableFunc(claimants, func(a, b *object.Object) int { return a.Created.Compare(b.Created) })
	out := map[string]string{}
	for _, o := range claimants {
		for _, host := range normalise.HostsOf(o, s.domain) {
			if _, taken := out[host]; !taken {
				out[host] = fmt.Sprintf("%s of source %s", o.Key, o.Source)
			}
		}
	}
	return out
}

// previewOf writes a preview within the bounds of an answer. conflicts are the fields of problems about hosts that the
// mesh has.
func previewOf(p registry.Preview, conflicts map[string]bool) *configv1.PreviewRegistryResponse {
	first := func(n, most int) (shown int, more uint32) { return min(n, most), uint32(max(n-most, 0)) }
	out := &configv1.PreviewRegistryResponse{}
	var shown int
	shown, out.MoreServices = first(len(p.Services), maxPreviewed)
	out.Services = lists.Map(p.Services[:shown], func(sv registry.PreviewService) *configv1.PreviewedService {
		return &configv1.PreviewedService{Name: sv.Name, Rule: uint32(sv.Rule), Namespace: sv.Namespace, Hosts: sv.Hosts,
			Ports: lists.Map(sv.Ports, func(p registry.PreviewPort) string {
				return fmt.Sprintf("%d/%s", p.Number, p.Protocol)
			}), ExportTo: sv.ExportTo, Account: sv.Account, Joins: sv.Joins, Share: sv.Share, Instances: uint32(sv.Instances),
			Ready: uint32(sv.Ready), LeftOut: uint32(sv.LeftOut)}
	})
	shown, out.MoreUnmatched = first(len(p.Unmatched), maxUnmatched)
	out.Unmatched = p.Unmatched[:shown]
	shown, out.MoreProblems = first(len(p.Problems), maxFound)
	out.Problems = lists.Map(p.Problems[:shown], func(p object.Problem) *configv1.PreviewProblem {
		return &configv1.PreviewProblem{Object: p.Object, Field: p.Field, Reason: p.Reason, Remedy: p.Remedy,
			Conflict: conflicts[p.Field]}
	})
	return out
}
