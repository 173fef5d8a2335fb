// Package values translates between the two forms of a setting: fields of the IstioOperator's spec, and Helm values.
// The install package's mapping says which field is which value.
package values

import (
	"fmt"
	"strings"

	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

// Instance is one component to install, with what its chart gets.
type Instance struct {
	*profile.Component
	// Label is the component's name, and for one of a list its own name: "pilot",
	// "ingressGateways[istio-ingressgateway]".
	Label string
	// Spec is its part of spec.components.
	Spec tree.Map
	// Name of one of a list; empty otherwise.
	Name      string
	Namespace string
	Values    tree.Map
}

// Instances returns the enabled components of a spec with their values, in the order of the mapping. The spec is merged
// and valid.
func Instances(spec tree.Map, mapping *profile.Mapping) []Instance {
	base := Global(spec, mapping)
	var all []Instance
	for i := range mapping.Components {
		c := &mapping.Components[i]
		if c.Chart == "" {
			continue
		}
		for _, part := range parts(spec, c, mapping) {
			if enabled, ok := part["enabled"].(bool); ok && !enabled {
				continue
			}
			in := Instance{Component: c, Label: c.Name, Spec: part}
			if c.List {
				in.Name = tree.GetString(part, "name")
				in.Label = fmt.Sprintf("%s[%s]", c.Name, in.Name)
			}
			in.Values = componentValues(base, in, mapping)
			in.Namespace = tree.GetString(part, "namespace")
			if in.Namespace == "" && c.List {
				in.Namespace = tree.GetString(base, "global", "namespaces", "gateways")
			}
			if in.Namespace == "" {
				in.Namespace = Namespace(base, mapping)
			}
			all = append(all, in)
		}
	}
	return all
}

// Namespace is where components go that name none.
func Namespace(values tree.Map, mapping *profile.Mapping) string {
	if ns := tree.GetString(values, "global", "istioNamespace"); ns != "" {
		return ns
	}
	return mapping.Namespace
}

// parts returns a component's part of the spec, or those of a list. An absent component has none.
func parts(spec tree.Map, c *profile.Component, mapping *profile.Mapping) []tree.Map {
	v, ok := tree.Get(spec, "components", c.Name)
	if over := mapping.Component(c.Under); over != nil {
		return under(spec, c, over, mapping)
	}
	if !ok {
		return nil
	}
	if !c.List {
		part, isMap := v.(tree.Map)
		if !isMap && v != nil {
			return nil // refused, and forced
		}
		return []tree.Map{part}
	}
	list, _ := v.([]any)
	var all []tree.Map
	for _, item := range list {
		part, _ := item.(tree.Map)
		all = append(all, part)
	}
	return all
}

// under returns the part of a component that lies over that of another one. It is disabled if that is.
func under(spec tree.Map, c, over *profile.Component, mapping *profile.Mapping) []tree.Map {
	parent := parts(spec, over, mapping)
	if len(parent) == 0 {
		return nil
	}
	lower := tree.CopyMap(parent[0])
	for _, path := range c.UnderWithout {
		tree.Delete(lower, strings.Split(path, ".")...)
	}
	own, _ := tree.Get(spec, "components", c.Name)
	part, _ := own.(tree.Map)
	part = tree.Merge(lower, part)
	if enabled, ok := parent[0]["enabled"].(bool); ok && !enabled {
		part["enabled"] = c.With != "" && Enabled(spec, c.With) && tree.GetMap(spec, "components", c.Name)["enabled"] != false
	}
	return []tree.Map{part}
}

// Enabled tells of a component that the spec enables.
func Enabled(spec tree.Map, name string) bool {
	return tree.GetMap(spec, "components", name)["enabled"] == true
}

// Global returns the values of a spec that all components share: spec.values, and the fields of the spec that are
// values, too.
func Global(spec tree.Map, mapping *profile.Mapping) tree.Map {
	out := tree.CopyMap(tree.GetMap(spec, "values"))
	if out == nil {
		out = tree.Map{}
	}
	for _, f := range mapping.Values {
		field(out, spec, f, nil)
	}
	if more, ok := spec["unvalidatedValues"].(tree.Map); ok {
		out = tree.Merge(out, more)
	}
	for i := range mapping.Components {
		c := &mapping.Components[i]
		for _, s := range c.Switches {
			enabled := false
			for _, part := range parts(spec, c, mapping) {
				if on, _ := part["enabled"].(bool); on {
					enabled = true
				}
			}
			tree.Put(out, enabled, strings.Split(s, ".")...)
		}
	}
	return out
}

// field sets the value of a field of the spec.
func field(out, spec tree.Map, f profile.SpecValue, root []string) {
	v, ok := tree.Get(spec, strings.Split(f.Spec, ".")...)
	if !ok || v == nil {
		return
	}
	path := append(append([]string{}, root...), strings.Split(f.Value, ".")...)
	old, set := tree.Get(out, path...)
	if set && !f.SpecWins {
		return
	}
	if f.Text {
		v = scalarText(v)
	}
	oldMap, ok1 := old.(tree.Map)
	newMap, ok2 := v.(tree.Map)
	if ok1 && ok2 {
		v = tree.Merge(oldMap, newMap)
	}
	tree.Put(out, tree.Copy(v), path...)
}

// scalarText writes a number as text, in the way of YAML.
func scalarText(v any) any {
	if _, isText := v.(string); isText {
		return v
	}
	text, err := tree.Text(v)
	if err != nil {
		return v
	}
	return strings.TrimSpace(string(text))
}

func componentValues(base tree.Map, in Instance, mapping *profile.Mapping) tree.Map {
	out := tree.CopyMap(base)
	root := in.RootPath()
	if over := mapping.Component(in.Under); over != nil {
		lower := tree.Map{}
		for _, key := range in.UnderValues {
			if v, ok := tree.Get(out, append(over.RootPath(), key)...); ok {
				lower[key] = v
			}
		}
		if own := tree.Merge(lower, tree.GetMap(out, root...)); len(own) > 0 {
			tree.Put(out, own, root...)
		}
	}
	for _, key := range in.Drop {
		delete(out, key)
	}
	for _, f := range in.Component.Values {
		field(out, in.Spec, f, root)
	}
	if in.List {
		tree.Put(out, in.Name, append(append([]string{}, root...), "name")...)
		// As in istioctl, the label of the spec takes the place of the values' labels; package validate warns of these.
		labels := append(append([]string{}, root...), "labels")
		if label, ok := in.Spec["label"].(tree.Map); ok {
			tree.Put(out, tree.CopyMap(label), labels...)
		} else {
			tree.Delete(out, labels...)
		}
	}
	own := tree.GetMap(out, root...)
	if len(in.Only) > 0 {
		only := tree.Map{}
		for _, key := range in.Only {
			if v, ok := out[key]; ok {
				only[key] = v
			}
		}
		if out = only; !in.Flatten && own != nil {
			tree.Put(out, own, root...)
		}
	}
	if in.Flatten {
		out = tree.Merge(out, own)
	}
	return out
}

// Revision is what names of objects have at their end: "-canary", or nothing.
func (in *Instance) Revision() string {
	if r := tree.GetString(in.Values, "revision"); r != "" {
		return "-" + r
	}
	return ""
}
