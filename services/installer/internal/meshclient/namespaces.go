package meshclient

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/pkg/nearest"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/configapi"
)

// NamespaceError is the error for a namespace that the mesh does not have.
type NamespaceError struct {
	Name  string
	There []string
}

// Error implements error.
func (e *NamespaceError) Error() string {
	text := fmt.Sprintf("no namespace %q in this mesh%s", e.Name, nearest.Hint(e.Name, e.There))
	if len(e.There) > 0 {
		text += "; there are " + strings.Join(e.There, ", ")
	}
	return text
}

// Namespaces lists the namespaces of all proxies and objects in force.
func Namespaces(ctx context.Context, client *configapi.Client) ([]string, error) {
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
