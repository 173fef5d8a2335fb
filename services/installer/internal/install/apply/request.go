// Package apply makes the objects of an installation the cluster's. NewPlan compares them with the cluster and changes
// nothing; Plan.Apply applies what differs, component by component, waits until each is ready, and prunes. NewRemoval
// and Removal.Run are the same for an uninstall. Package inventory keeps what is installed, package wait waits, package
// cluster sends the requests.
//
// Applying is server-side apply with one field manager, cluster.Manager, and is not forced: who has other values for
// the same fields is named, and keeps them.
package apply

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/order"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/install/values"
)

// Request is what is to be installed.
type Request struct {
	Revision, Namespace string
	// Name is that of gateways alone whose IstioOperator has one: they are an installation of their own, so that it is
	// not that the revision's control plane goes.
	Name string
	inventory.Installation
	// Components are their labels, in the order in which they are installed.
	Components []string
	// Alone are the components of the package beside which there is no other revision.
	Alone []string
	// Lists are the components of the package of which there may be many: gateways.
	Lists []string
	// RootConfigMap is the ConfigMap that the ca of the installation keeps its roots in; empty without a ca.
	RootConfigMap string
	// Objects in the order in which they are applied.
	Objects []*manifest.Object
}

// NewRequest takes a request from what the engine has generated. Installer is the version of the program.
func NewRequest(r *install.Result, pkg *profile.Package, installer string) (*Request, error) {
	vals := values.Global(r.Merged.Spec, &pkg.Mapping)
	req := &Request{
		Revision:  cmp.Or(tree.GetString(vals, "revision"), inventory.Default),
		Namespace: values.Namespace(vals, &pkg.Mapping),
		Objects:   r.Objects,
		Installation: inventory.Installation{
			Spec: r.Merged.Spec, Profile: r.Merged.Profile, Version: installer,
		},
	}
	if req.Namespace == "" {
		return nil, fmt.Errorf("the installation has no namespace: set values.global.istioNamespace")
	}
	for i := range pkg.Components {
		if c := &pkg.Components[i]; c.Alone {
			req.Alone = append(req.Alone, c.Name)
		}
		if pkg.Components[i].List {
			req.Lists = append(req.Lists, pkg.Components[i].Name)
		}
	}
	req.RootConfigMap = RootConfigMap(r, vals)
	for _, c := range r.Components {
		req.Components = append(req.Components, c.Label)
		if chart, err := pkg.Chart(c.Chart); err == nil && req.Package == "" && chart.Metadata != nil {
			req.Package = cmp.Or(chart.Metadata.AppVersion, chart.Metadata.Version)
		}
	}
	if len(r.Components) > 0 && !slices.ContainsFunc(r.Components, func(c values.Instance) bool { return !c.List }) {
		req.Name = r.Merged.Name
	}
	if errs := validation.IsValidLabelValue(req.Name); len(errs) > 0 {
		return nil, fmt.Errorf("metadata.name is %q, which is the name of the installation: %s", req.Name, errs[0])
	}
	text, err := order.Text(r.Objects)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	req.Hash = hex.EncodeToString(sum[:])
	return req, nil
}

// RootConfigMap is the ConfigMap that the ca of an installation keeps its roots in; empty without a ca.
func RootConfigMap(r *install.Result, vals tree.Map) string {
	if !slices.ContainsFunc(r.Components, func(c values.Instance) bool { return c.Roots }) {
		return ""
	}
	return cmp.Or(tree.GetString(vals, "global", "trustBundleName"), contract.RootConfigMap)
}

// Options of Apply and Run.
type Options struct {
	// Wait for readiness, and for the end of deletions.
	Wait bool
	// Recreate makes objects anew where a field cannot be changed; without it such a plan is an error.
	Recreate bool
	// Timeout bounds all waiting together.
	Timeout time.Duration
	// Progress is told what happens; it may not be nil.
	Progress Progress
}

// Progress is told how far an installation is. It is called from one goroutine.
type Progress interface {
	// Step says that so many objects of a component are done, and what is done now.
	Step(component string, done, total int, now string)
	// Done ends a component: what was done with it.
	Done(component, summary string)
}

// Stages before the components, as Progress names them.
const (
	stageNamespaces  = "namespaces"
	stageDefinitions = "CustomResourceDefinitions"
	stagePrune       = "prune"
)

// item is one object on its way from the request to the plan.
type item struct {
	inventory.Entry
	object *unstructured.Unstructured
}

// items converts the objects of a request. Objects that are made twice are one if they are equal.
func items(req *Request, c *cluster.Client) ([]item, error) {
	var all []item
	seen := map[cluster.ID]int{}
	for _, o := range req.Objects {
		u, err := cluster.Object(o)
		if err != nil {
			return nil, err
		}
		all = append(all, item{inventory.Entry{ID: cluster.Of(u), Component: o.Component}, u})
	}
	scopes := planned(all)
	kept := all[:0]
	for _, it := range all {
		namespaced, err := scope(c, scopes, it.ID)
		if err != nil {
			return nil, fmt.Errorf("component %s: %w", it.Component, err)
		}
		switch {
		case !namespaced:
			it.object.SetNamespace("")
		case it.Namespace == "":
			it.object.SetNamespace(req.Namespace)
		}
		it.ID = cluster.Of(it.object)
		mark(it.object, it.Component)
		if i, twice := seen[it.Key()]; twice {
			if !same(kept[i].object, it.object) {
				return nil, fmt.Errorf("%s is made by component %s and differently by %s: give one of them another name or namespace", it.ID,
					kept[i].Component, it.Component)
			}
			continue
		}
		seen[it.Key()] = len(kept)
		kept = append(kept, it)
	}
	return kept, nil
}

// ComponentLabel is on every object that is applied: it has the component's name in spec.components. An object without
// other fields than its name would have no field that is the installer's, and nobody could tell whose it is.
const ComponentLabel = "install.fairlead.dev/component"

func mark(u *unstructured.Unstructured, component string) {
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[ComponentLabel], _, _ = strings.Cut(component, "[")
	u.SetLabels(labels)
}

func same(a, b *unstructured.Unstructured) bool {
	x, errX := a.MarshalJSON()
	y, errY := b.MarshalJSON()
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// kind is a kind without its version.
func kind(id cluster.ID) cluster.ID { return cluster.ID{Group: id.Group, Kind: id.Kind} }

// planned returns the kinds that CustomResourceDefinitions of the installation define, and whether they are in
// namespaces.
func planned(all []item) map[cluster.ID]bool {
	scopes := map[cluster.ID]bool{}
	for _, it := range all {
		if !it.IsCRD() {
			continue
		}
		group, _, _ := unstructured.NestedString(it.object.Object, "spec", "group")
		name, _, _ := unstructured.NestedString(it.object.Object, "spec", "names", "kind")
		scope, _, _ := unstructured.NestedString(it.object.Object, "spec", "scope")
		scopes[cluster.ID{Group: group, Kind: name}] = scope != "Cluster"
	}
	return scopes
}

// namespaces are those of the objects and of the inventory that no object is, sorted.
func namespaces(req *Request, all []item) []string {
	names := map[string]bool{req.Namespace: true}
	for _, it := range all {
		if it.Namespace != "" {
			names[it.Namespace] = true
		}
	}
	for _, it := range all {
		if it.IsNamespace() {
			delete(names, it.Name)
		}
	}
	var out []string
	for name := range names {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
