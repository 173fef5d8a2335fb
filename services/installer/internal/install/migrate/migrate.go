// Package migrate turns what installed Istio into an IstioOperator: values of Istio's Helm charts (Helm), an older
// IstioOperator (Operator), or the objects of an installation in a cluster (Cluster). Each gives a spec and warnings;
// what has no counterpart is a warning that names the field. All are functions of their inputs.
package migrate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/install/validate"
	"fairlead.dev/services/installer/internal/install/values"
)

// Result is a migrated installation.
type Result struct {
	// Spec of the IstioOperator, without what its profile says.
	Spec     tree.Map
	Warnings []string
}

func (r *Result) warn(format string, a ...any) {
	if text := fmt.Sprintf(format, a...); !slices.Contains(r.Warnings, text) {
		r.Warnings = append(r.Warnings, text)
	}
}

// Operator migrates files with IstioOperators and settings, as `manifest generate` takes them.
func Operator(in merge.Inputs, pkg *profile.Package) (*Result, error) {
	merged, err := merge.Merge(in, pkg)
	if err != nil {
		return nil, err
	}
	r := &Result{Spec: tree.CopyMap(merged.User), Warnings: merged.Warnings}
	return r, r.finish(pkg)
}

// empty is the profile that installs nothing by itself: what Helm and clusters have is said component by component.
const empty = "empty"

// start returns the spec of an installation whose components are all known.
func start() tree.Map { return tree.Map{"profile": empty} }

// maxRounds bounds how often refused fields are taken out: a field may be judged only after another is gone.
const maxRounds = 10

// finish gives the spec its canonical form, and takes out what would be refused.
func (r *Result) finish(pkg *profile.Package) error {
	for range maxRounds {
		merged, err := r.merge(pkg)
		if err != nil {
			return err
		}
		refused := slices.DeleteFunc(validate.Check(merged.Spec, &pkg.Mapping), func(p validate.Problem) bool { return p.Warning })
		if len(refused) == 0 {
			return r.canonical(pkg)
		}
		for _, p := range refused {
			if !r.take(p) {
				return fmt.Errorf("profile %s of the install package: %s: %s", merged.Profile, p.Path(), p.Text)
			}
		}
	}
	return fmt.Errorf("the spec is refused in more than %d ways; migrate it in parts", maxRounds)
}

// merge lays the spec on its profile.
func (r *Result) merge(pkg *profile.Package) (*merge.Merged, error) {
	text, err := tree.Text(merge.Operator(r.Spec))
	if err != nil {
		return nil, err
	}
	merged, err := merge.Merge(merge.Inputs{Files: []merge.File{{Name: "migrated", Text: text}}}, pkg)
	if err != nil {
		return nil, fmt.Errorf("the migrated IstioOperator: %w", err)
	}
	return merged, nil
}

// take takes a refused field out of the spec: a value becomes one that is not validated, anything else is left out. It
// is false if the spec does not have the field.
func (r *Result) take(p validate.Problem) bool {
	keys := p.Keys
	value := len(keys) > 1 && keys[0] == "values"
	if i := slices.IndexFunc(keys, index); value && i > 0 {
		keys = keys[:i] // the whole list
	}
	v, ok := at(r.Spec, keys)
	switch {
	case !ok:
		return value && len(keys) < len(p.Keys) // it went with its list
	case value:
		r.warn("%s: %s; it is kept in unvalidatedValues", p.Path(), p.Text)
		tree.Put(r.Spec, v, append([]string{"unvalidatedValues"}, keys[1:]...)...)
	default:
		r.warn("%s: %s; it is not migrated", p.Path(), p.Text)
	}
	remove(r.Spec, keys)
	return true
}

func index(key string) bool { return strings.Trim(key, "0123456789") == "" }

// canonical moves what values say to the fields of the spec that say the same, where the charts get the same by it.
func (r *Result) canonical(pkg *profile.Package) error {
	base, err := r.base(pkg)
	if err != nil {
		return err
	}
	said, _ := r.Spec["values"].(tree.Map)
	before := instances(tree.Merge(base, r.Spec), &pkg.Mapping)
	try := func(field string, keys []string, c *profile.Component) {
		v, ok := tree.Get(r.Spec, append([]string{"values"}, keys...)...)
		if !ok || v == nil || c != nil && !same(field, said, c) {
			return
		}
		one := tree.Map{}
		tree.Put(one, v, keys...)
		trial := tree.CopyMap(r.Spec)
		prune(trial, append([]string{"values"}, keys...))
		trial = tree.Merge(values.FromValues(one, &pkg.Mapping), trial)
		after := instances(tree.Merge(base, trial), &pkg.Mapping)
		if alike(before, after, keys, c) {
			r.Spec, before = trial, after
		}
	}
	for _, f := range pkg.Values {
		try(f.Spec, strings.Split(f.Value, "."), nil)
	}
	for i := range pkg.Components {
		c := &pkg.Components[i]
		if c.Alias != "" || c.List { // values of gateways hold for every gateway, and a field for one
			continue
		}
		for _, f := range c.Values {
			try(f.Spec, append(slices.Clone(c.RootPath()), strings.Split(f.Value, ".")...), c)
		}
	}
	// What the profile says already is not said again.
	trial := tree.CopyMap(r.Spec)
	if left := without(tree.GetMap(trial, "values"), tree.GetMap(base, "values")); len(left) == 0 {
		delete(trial, "values")
	} else {
		trial["values"] = left
	}
	after := instances(tree.Merge(base, trial), &pkg.Mapping)
	for _, list := range [][]installed{before, after} {
		for i := range list {
			dense(list[i].values) // an empty mapping says nothing
		}
	}
	if reflect.DeepEqual(before, after) {
		r.Spec = trial
	}
	return nil
}

// without returns values without what the values below them say alike, and without empty mappings.
func without(values, below tree.Map) tree.Map {
	out := tree.Map{}
	for k, v := range values {
		old, ok := below[k]
		m, isMap := v.(tree.Map)
		oldMap, _ := old.(tree.Map)
		switch {
		case isMap:
			if left := without(m, oldMap); len(left) > 0 {
				out[k] = left
			}
		case !ok || !reflect.DeepEqual(v, old):
			out[k] = v
		}
	}
	return out
}

// base is what lies under the spec: its profile, on the default one.
func (r *Result) base(pkg *profile.Package) (tree.Map, error) {
	base, err := pkg.Spec(profile.Default)
	if err != nil {
		return nil, err
	}
	name := tree.GetString(r.Spec, "profile")
	if name == "" || name == profile.Default {
		return base, nil
	}
	over, err := pkg.Spec(name)
	if err != nil {
		return nil, err
	}
	return tree.Merge(base, over), nil
}

// installed is what decides which objects a component has, without its Kubernetes settings.
type installed struct {
	label, namespace string
	values           tree.Map
}

func instances(spec tree.Map, mapping *profile.Mapping) []installed {
	var all []installed
	for _, in := range values.Instances(spec, mapping) {
		all = append(all, installed{in.Label, in.Namespace, in.Values})
	}
	return all
}

// writer is the component whose chart writes all values into a ConfigMap.
const writer = "pilot"

// alike tells whether charts get the same, but for one value of component c, which no other chart reads.
func alike(before, after []installed, keys []string, c *profile.Component) bool {
	if len(before) != len(after) {
		return false
	}
	for i := range before {
		a, b := before[i], after[i]
		if c != nil && a.label != c.Name && a.label != writer {
			a.values, b.values = tree.CopyMap(a.values), tree.CopyMap(b.values)
			prune(a.values, keys)
			prune(b.values, keys)
		}
		if !reflect.DeepEqual(a, b) {
			return false
		}
	}
	return true
}

// prune removes a value, and the mappings that become empty by it.
func prune(m tree.Map, keys []string) {
	for n := len(keys); n > 0; n-- {
		tree.Delete(m, keys[:n]...)
		if parent := tree.GetMap(m, keys[:n-1]...); len(parent) > 0 {
			return
		}
	}
}

// same tells whether a field of a component's spec gives the same objects as its value. Most fields are written into
// the objects after the chart has made them; a chart that scales by itself writes no replicas.
func same(field string, old tree.Map, c *profile.Component) bool {
	switch field {
	case "hub", "tag", "variant":
		return true
	case "k8s.replicaCount":
		scaled, ok := tree.Get(old, append(slices.Clone(c.RootPath()), "autoscaleEnabled")...)
		return ok && scaled == false
	}
	return false
}

// at follows keys, of which some may be places in lists.
func at(v any, keys []string) (any, bool) {
	for _, k := range keys {
		switch t := v.(type) {
		case tree.Map:
			next, ok := t[k]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i := place(k)
			if i < 0 || i >= len(t) {
				return nil, false
			}
			v = t[i]
		default:
			return nil, false
		}
	}
	return v, true
}

func place(key string) int {
	n := -1
	if _, err := fmt.Sscanf(key, "%d", &n); err != nil {
		return -1
	}
	return n
}

// remove removes the value below keys; an item of a list becomes null, so that others keep their places.
func remove(m tree.Map, keys []string) {
	parent, ok := at(m, keys[:len(keys)-1])
	if !ok {
		return
	}
	switch t := parent.(type) {
	case tree.Map:
		delete(t, keys[len(keys)-1])
	case []any:
		t[place(keys[len(keys)-1])] = nil
	}
}

// Text is the IstioOperator.
func (r *Result) Text() ([]byte, error) { return tree.Text(merge.Operator(r.Spec)) }
