package meshclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/configapi"
)

// Selection chooses objects or proxies. Its fields are the values of -n, -A and -l.
type Selection struct {
	Namespace string
	All       bool
	Selector  string
}

// Labels parses -l; nil without one.
func (s Selection) Labels() (labels.Selector, error) {
	if s.Selector == "" {
		return nil, nil
	}
	selector, err := labels.Parse(s.Selector)
	if err != nil {
		return nil, process.Usagef("--selector %q: %w; write app=web, app!=web or \"app in (web, cart)\"", s.Selector, err)
	}
	return selector, nil
}

// ReportEmpty says that nothing is selected of what there is; standard output keeps the form that it has for results.
func (s *Selection) ReportEmpty(w io.Writer, what string) error {
	if s.Namespace != "" {
		what += fmt.Sprintf(" in namespace %s", s.Namespace)
	}
	if s.Selector != "" {
		what += fmt.Sprintf(" that -l %s selects", s.Selector)
	}
	_, err := fmt.Fprintf(w, "no %s\n", what)
	return err
}

// Fleet are the connected proxies, of all replicas of config-watcher.
type Fleet struct {
	*configv1.ListProxiesResponse
	// revisions are the newest ones, by replica: each counts its own.
	revisions []replicaRevision
	// Silent says which replicas have not answered: the proxies of the xds-servers that report to them are missing.
	Silent []error
}

type replicaRevision struct {
	replica  string
	revision *configv1.Revision
}

// Fleet asks every config-watcher for the connected proxies that a selection means. A namespace that the mesh
// does not have is a *NamespaceError. It is an error if no config-watcher answers.
func (m *Mesh) Fleet(ctx context.Context, s Selection) (*Fleet, error) {
	selector, err := s.Labels()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	watchers, err := m.Watchers(ctx)
	if err != nil {
		return nil, err
	}
	defer CloseAll(watchers)
	f, answering, err := askFleet(ctx, watchers, s.Namespace)
	if err != nil {
		return nil, err
	}
	f.Proxies = slices.DeleteFunc(f.GetProxies(),
		func(p *configv1.ProxyStatus) bool { return s.Namespace != "" && p.GetNamespace() != s.Namespace })
	if s.Namespace != "" && len(f.GetProxies()) == 0 {
		there, err := Namespaces(ctx, answering)
		if err != nil {
			return nil, configapi.WithExitCode(answering.Explain(err))
		}
		if !slices.Contains(there, s.Namespace) {
			return nil, &NamespaceError{s.Namespace, there}
		}
	}
	if selector == nil {
		return f, nil
	}
	of, err := workloadLabels(ctx, answering, s.Namespace)
	if err != nil {
		return nil, configapi.WithExitCode(answering.Explain(err))
	}
	f.Proxies = slices.DeleteFunc(f.GetProxies(),
		func(p *configv1.ProxyStatus) bool { return !selector.Matches(of[p.GetNamespace()+"/"+PodName(p)]) })
	return f, nil
}

// askFleet asks all replicas at once and merges what they answer. answering is a client of one that does.
func askFleet(ctx context.Context, watchers []Watcher, namespace string) (f *Fleet, answering *configapi.Client, err error) {
	answers := make([]*configv1.ListProxiesResponse, len(watchers))
	errs := make([]error, len(watchers))
	var all sync.WaitGroup
	for i, w := range watchers {
		all.Go(func() {
			answers[i], errs[i] = w.ListProxies(ctx, &configv1.ListProxiesRequest{Namespace: namespace})
		})
	}
	all.Wait()
	f = &Fleet{}
	var lists []*configv1.ListProxiesResponse
	for i, w := range watchers {
		if err := errs[i]; err != nil {
			if len(watchers) > 1 {
				f.Silent = append(f.Silent, fmt.Errorf("%s: %w", w.Name, w.Explain(err)))
			}
			errs[i] = configapi.WithExitCode(w.Explain(err))
			continue
		}
		answering = w.Client
		lists = append(lists, answers[i])
		f.revisions = append(f.revisions, replicaRevision{w.Name, answers[i].GetRevision()})
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

// RevisionText is the number of a revision; empty for none.
func RevisionText(r *configv1.Revision) string {
	if r == nil {
		return ""
	}
	return fmt.Sprint(r.GetSequence())
}

// Newest names the newest revision, of each replica if there are several.
func (f *Fleet) Newest() string {
	if len(f.revisions) == 1 {
		return RevisionText(f.GetRevision())
	}
	var parts []string
	for _, r := range f.revisions {
		parts = append(parts, fmt.Sprintf("%s of %s", cmp.Or(RevisionText(r.revision), "-"), r.replica))
	}
	return strings.Join(parts, ", ")
}
