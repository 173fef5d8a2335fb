package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/configapi"
)

// fleet are the connected proxies, of all replicas of config-watcher.
type fleet struct {
	*configv1.ListProxiesResponse
	// revisions are the newest ones, by replica: each counts its own.
	revisions []replicaRevision
	// silent says which replicas have not answered: the proxies of the xds-servers that report to them are missing.
	silent []error
}

type replicaRevision struct {
	replica  string
	revision *configv1.Revision
}

// listProxies asks every config-watcher for the connected proxies that a selection means. A namespace that the mesh
// does not have is a *namespaceError. It is an error if no config-watcher answers.
func (t *target) listProxies(ctx context.Context, s selection) (*fleet, error) {
	selector, err := s.labels()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	watchers, err := t.dialAll(ctx)
	if err != nil {
		return nil, err
	}
	defer closeAll(watchers)
	f, answering, err := askFleet(ctx, watchers, s.namespace)
	if err != nil {
		return nil, err
	}
	f.Proxies = slices.DeleteFunc(f.GetProxies(),
		func(p *configv1.ProxyStatus) bool { return s.namespace != "" && p.GetNamespace() != s.namespace })
	if s.namespace != "" && len(f.GetProxies()) == 0 {
		there, err := namespaces(ctx, answering)
		if err != nil {
			return nil, withExitCode(answering.Explain(err))
		}
		if !slices.Contains(there, s.namespace) {
			return nil, &namespaceError{s.namespace, there}
		}
	}
	if selector == nil {
		return f, nil
	}
	of, err := workloadLabels(ctx, answering, s.namespace)
	if err != nil {
		return nil, withExitCode(answering.Explain(err))
	}
	f.Proxies = slices.DeleteFunc(f.GetProxies(),
		func(p *configv1.ProxyStatus) bool { return !selector.Matches(of[p.GetNamespace()+"/"+podName(p)]) })
	return f, nil
}

// askFleet asks all replicas at once and merges what they answer. answering is a client of one that does.
func askFleet(ctx context.Context, watchers []watcher, namespace string) (f *fleet, answering *configapi.Client, err error) {
	answers := make([]*configv1.ListProxiesResponse, len(watchers))
	errs := make([]error, len(watchers))
	var all sync.WaitGroup
	for i, w := range watchers {
		all.Go(func() {
			answers[i], errs[i] = w.client.ListProxies(ctx, &configv1.ListProxiesRequest{Namespace: namespace})
		})
	}
	all.Wait()
	f = &fleet{}
	var lists []*configv1.ListProxiesResponse
	for i, w := range watchers {
		if err := errs[i]; err != nil {
			if len(watchers) > 1 {
				f.silent = append(f.silent, fmt.Errorf("%s: %w", w.name, w.client.Explain(err)))
			}
			errs[i] = withExitCode(w.client.Explain(err))
			continue
		}
		answering = w.client
		lists = append(lists, answers[i])
		f.revisions = append(f.revisions, replicaRevision{w.name, answers[i].GetRevision()})
	}
	if answering == nil {
		return nil, nil, errors.Join(errs...)
	}
	f.ListProxiesResponse = mergeFleets(lists)
	return f, answering, nil
}

// mergeFleets makes one answer of those of several replicas. An xds-server that has moved from one replica to another
// may be in the answers of both for a moment: of a proxy's entries from one xds-server the one with the later revision
// is kept.
func mergeFleets(lists []*configv1.ListProxiesResponse) *configv1.ListProxiesResponse {
	if len(lists) == 1 {
		return lists[0]
	}
	type stream struct{ node, identity, server string }
	seen := map[stream]int{}
	merged := &configv1.ListProxiesResponse{}
	for _, list := range lists {
		if later(list.GetRevision(), merged.GetRevision()) {
			merged.Revision = list.GetRevision()
		}
		merged.Refusals = append(merged.Refusals, list.GetRefusals()...)
		merged.Reporters += list.GetReporters()
		merged.Unsettled = merged.GetUnsettled() || list.GetUnsettled()
		for _, p := range list.GetProxies() {
			key := stream{p.GetNodeId(), p.GetIdentity(), p.GetXdsServer()}
			i, known := seen[key]
			switch {
			case !known:
				seen[key] = len(merged.GetProxies())
				merged.Proxies = append(merged.Proxies, p)
			case later(p.GetAcked(), merged.GetProxies()[i].GetAcked()):
				merged.Proxies[i] = p
			}
		}
	}
	slices.SortStableFunc(merged.GetProxies(), func(a, b *configv1.ProxyStatus) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetWorkload(), b.GetWorkload()),
			strings.Compare(a.GetNodeId(), b.GetNodeId()))
	})
	return merged
}

// later reports whether a revision was committed after another one, which may be of another replica.
func later(a, b *configv1.Revision) bool {
	return a != nil && (b == nil || a.GetCommittedAt().AsTime().After(b.GetCommittedAt().AsTime()))
}

// newest names the newest revision, of each replica if there are several.
func (f *fleet) newest() string {
	if len(f.revisions) == 1 {
		return revisionOf(f.GetRevision())
	}
	var parts []string
	for _, r := range f.revisions {
		parts = append(parts, fmt.Sprintf("%s of %s", cmp.Or(revisionOf(r.revision), "-"), r.replica))
	}
	return strings.Join(parts, ", ")
}

// reportSilent says which replicas have not answered, and while no xds-server reports, that what is known of proxies is
// old, or nothing.
func (f *fleet) reportSilent(out io.Writer) {
	const nobody = "no xds-server reports to config-watcher: %s; see whether xds-server runs\n"
	switch {
	case f.GetReporters() > 0:
	case len(f.GetProxies()) > 0:
		fmt.Fprintf(out, nobody, "what follows is what the last ones have reported")
	default:
		fmt.Fprintf(out, nobody, "which proxies are connected is not known")
	}
	for _, err := range f.silent {
		fmt.Fprintf(out, "the proxies of xds-servers that report to this replica are missing: %v\n", err)
	}
}
