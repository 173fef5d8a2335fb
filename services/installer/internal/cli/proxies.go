package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/proxyname"
)

// selection holds the flags that choose objects or proxies: namespace and labels.
type selection struct {
	namespace string
	all       bool
	selector  string
}

// register adds -n and -A; about ends the help of -n.
func (s *selection) register(cmd *cobra.Command, t *target, about string) {
	fs := cmd.Flags()
	t.namespaceFlag(cmd, &s.namespace, "namespace "+about)
	fs.BoolVarP(&s.all, "all-namespaces", "A", false, "all namespaces")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
}

// namespaceFlag adds -n, and completes it with the namespaces of the mesh.
func (t *target) namespaceFlag(cmd *cobra.Command, namespace *string, about string) {
	cmd.Flags().StringVarP(namespace, "namespace", "n", "", about)
	_ = cmd.RegisterFlagCompletionFunc("namespace", t.completeNamespaces) // fails only if the command lacks the flag
}

// registerSelector adds -l; of says whose labels.
func (s *selection) registerSelector(cmd *cobra.Command, of string) {
	cmd.Flags().StringVarP(&s.selector, "selector", "l", "", "only those whose "+of+" match, as in app=web,version!=v1")
}

// labels parses -l; nil without one.
func (s *selection) labels() (labels.Selector, error) {
	if s.selector == "" {
		return nil, nil
	}
	selector, err := labels.Parse(s.selector)
	if err != nil {
		return nil, usage(fmt.Errorf("--selector %q: %w; write app=web, app!=web or \"app in (web, cart)\"", s.selector, err))
	}
	return selector, nil
}

// namespaceError is the error for a namespace that the mesh does not have.
type namespaceError struct {
	name  string
	there []string
}

// Error implements error.
func (e *namespaceError) Error() string {
	text := fmt.Sprintf("no namespace %q in this mesh%s", e.name, nearest.Hint(e.name, e.there))
	if len(e.there) > 0 {
		text += "; there are " + strings.Join(e.there, ", ")
	}
	return text
}

// namespaces lists the namespaces of all proxies and objects in force.
func namespaces(ctx context.Context, client *configapi.Client) ([]string, error) {
	found := map[string]bool{}
	proxies, err := client.ListProxies(ctx, &configv1.ListProxiesRequest{})
	if err != nil {
		return nil, err
	}
	for _, p := range proxies.GetProxies() {
		found[p.GetNamespace()] = true
	}
	objects, err := client.List(ctx, &configv1.ListRequest{InForce: true, WithoutManifests: true})
	if err != nil {
		return nil, err
	}
	for _, o := range objects.GetObjects() {
		if found[o.GetKey().GetNamespace()] = true; o.GetKey().GetKind() == "Namespace" {
			found[o.GetKey().GetName()] = true
		}
	}
	delete(found, "")
	return slices.Sorted(maps.Keys(found)), nil
}

// workloadLabels returns the labels of Pods and WorkloadEntries by "<namespace>/<name>".
func workloadLabels(ctx context.Context, client *configapi.Client, namespace string) (map[string]labels.Set, error) {
	out := map[string]labels.Set{}
	for _, kind := range []string{"WorkloadEntry", "Pod"} {
		res, err := client.List(ctx, &configv1.ListRequest{Kind: kind, Namespace: namespace, InForce: true})
		if err != nil {
			return nil, err
		}
		for _, o := range res.GetObjects() {
			var tree struct {
				Metadata struct{ Labels labels.Set }
				Spec     struct{ Labels labels.Set }
			}
			if err := json.Unmarshal(o.GetManifest(), &tree); err != nil {
				return nil, fmt.Errorf("%s %s/%s: %w", kind, o.GetKey().GetNamespace(), o.GetKey().GetName(), err)
			}
			out[o.GetKey().GetNamespace()+"/"+o.GetKey().GetName()] = labels.Merge(tree.Metadata.Labels, tree.Spec.Labels)
		}
	}
	return out, nil
}

// filterByLabels returns the objects that a selector selects.
func filterByLabels(objects []*configv1.Object, selector labels.Selector) ([]*configv1.Object, error) {
	kept := []*configv1.Object{}
	for _, o := range objects {
		var tree struct {
			Metadata struct{ Labels labels.Set }
		}
		if err := json.Unmarshal(o.GetManifest(), &tree); err != nil {
			return nil, fmt.Errorf("%s %s/%s: %w", o.GetKey().GetKind(), o.GetKey().GetNamespace(), o.GetKey().GetName(), err)
		}
		if selector.Matches(tree.Metadata.Labels) {
			kept = append(kept, o)
		}
	}
	return kept, nil
}

// podName is the name of the proxy's workload, without its namespace.
func podName(p *configv1.ProxyStatus) string {
	return strings.TrimSuffix(proxyName(p.GetNodeId()), "."+p.GetNamespace())
}

// matchProxies returns the proxies that a name means, at least one. Where a verified proxy has a name, unverified ones
// of the same name are left out: anybody may claim it.
func matchProxies(all []*configv1.ProxyStatus, wanted proxyname.Wanted) ([]*configv1.ProxyStatus, error) {
	all = verifiedFirst(all)
	found, err := wanted.Find(proxyRefs(all))
	if err != nil {
		return nil, err
	}
	kept := make([]*configv1.ProxyStatus, 0, len(found))
	for _, i := range found {
		p := all[i]
		impostor := p.GetUnverified() && slices.ContainsFunc(kept, func(other *configv1.ProxyStatus) bool {
			return !other.GetUnverified() && proxyName(other.GetNodeId()) == proxyName(p.GetNodeId())
		})
		if !impostor {
			kept = append(kept, p)
		}
	}
	return kept, nil
}

// matchOneProxy is matchProxies for commands that need a single proxy.
func matchOneProxy(all []*configv1.ProxyStatus, wanted proxyname.Wanted) (*configv1.ProxyStatus, error) {
	all = verifiedFirst(all)
	i, err := wanted.One(proxyRefs(all))
	if err != nil {
		return nil, err
	}
	return all[i], nil
}

func verifiedFirst(all []*configv1.ProxyStatus) []*configv1.ProxyStatus {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *configv1.ProxyStatus) int {
		switch {
		case a.GetUnverified() == b.GetUnverified():
			return 0
		case a.GetUnverified():
			return 1
		}
		return -1
	})
	return all
}

func proxyRefs(all []*configv1.ProxyStatus) []proxyname.Proxy {
	list := make([]proxyname.Proxy, 0, len(all))
	for _, p := range all {
		name, namespace, _ := strings.Cut(proxyName(p.GetNodeId()), ".")
		if p.GetNamespace() != "" {
			name, namespace = podName(p), p.GetNamespace()
		}
		list = append(list, proxyname.Proxy{Name: name, Namespace: namespace})
	}
	return list
}

// reportEmpty says on standard error that nothing matches; standard output keeps the form that it has for results.
func reportEmpty(w io.Writer, what string, s selection) error {
	if s.namespace != "" {
		what += fmt.Sprintf(" in namespace %s", s.namespace)
	}
	if s.selector != "" {
		what += fmt.Sprintf(" that -l %s selects", s.selector)
	}
	_, err := fmt.Fprintf(w, "no %s\n", what)
	return err
}
