package operator

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/install/values"
)

const (
	// Finalizer is Istio's, so that a resource that its operator has left behind can be deleted.
	Finalizer = "istio-finalizer.install.istio.io"
	// IgnoreAnnotation has a resource left alone if its value is true.
	IgnoreAnnotation = "install.istio.io/ignoreReconcile"
)

// resource is an IstioOperator of the cluster.
type resource struct{ *unstructured.Unstructured }

func (r *resource) key() types.NamespacedName {
	return types.NamespacedName{Namespace: r.GetNamespace(), Name: r.GetName()}
}

func (r *resource) ignored() bool   { return r.GetAnnotations()[IgnoreAnnotation] == "true" }
func (r *resource) deleting() bool  { return r.GetDeletionTimestamp() != nil }
func (r *resource) finalized() bool { return slices.Contains(r.GetFinalizers(), Finalizer) }

// String names the resource for people.
func (r *resource) String() string { return cluster.Of(r.Unstructured).String() }

// meshNamespace is the namespace of the control plane that the resource asks for, as far as it says one itself. Who may
// write IstioOperators where the operator reads them is an administrator, so an inventory there counts.
func (r *resource) meshNamespace() string {
	namespace, _, _ := unstructured.NestedString(r.Object, "spec", "values", "global", "istioNamespace")
	of, _, _ := unstructured.NestedString(r.Object, "spec", "namespace")
	return cmp.Or(namespace, of)
}

// file is the resource as `fairlead install -f` would read it: in one line, so that errors name no other.
func (r *resource) file() (merge.File, error) {
	doc := map[string]any{"apiVersion": r.GetAPIVersion(), "kind": r.GetKind(), "spec": r.Object["spec"]}
	if doc["spec"] == nil {
		doc["spec"] = map[string]any{}
	}
	text, err := json.Marshal(doc)
	return merge.File{Name: r.String(), Text: text}, err
}

// withoutLine takes the number of that line out of a text.
func (r *resource) withoutLine(text string) string {
	return strings.ReplaceAll(text, r.String()+":1:", r.String()+":")
}

// request makes the objects that a resource asks for.
func (op *Operator) request(r *resource) (*apply.Request, []string, error) {
	file, err := r.file()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", r, err)
	}
	result, err := install.Generate(install.Inputs{Inputs: merge.Inputs{Files: []merge.File{file}}, Package: op.pkg, JudgeMesh: op.judgeMesh})
	if err != nil {
		return nil, nil, errors.New(r.withoutLine(err.Error()))
	}
	if err := op.guard(r, file, result); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", r, err)
	}
	req, err := apply.NewRequest(result, op.pkg, op.version)
	if req != nil {
		req.Name = "" // a revision has one resource
	}
	warnings := result.Warnings
	for i, w := range warnings {
		warnings[i] = r.withoutLine(w)
	}
	return req, warnings, err
}

// revision is the one that a resource asks for. Of one that cannot be read it is what its field says.
func (op *Operator) revision(r *resource) string {
	if file, err := r.file(); err == nil {
		if merged, err := merge.Merge(merge.Inputs{Files: []merge.File{file}}, op.pkg); err == nil {
			if name := tree.GetString(values.Global(merged.Spec, &op.pkg.Mapping), "revision"); name != "" {
				return name
			}
			return inventory.Default
		}
	}
	if name, _, _ := unstructured.NestedString(r.Object, "spec", "revision"); name != "" {
		return name
	}
	return inventory.Default
}
