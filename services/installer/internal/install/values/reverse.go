package values

import (
	"strings"

	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

// FromValues turns Helm values into a spec: values that fields of the spec say, too, become these fields, enablement
// and Kubernetes settings included, and the rest stays below spec.values. Rendering the spec gives the charts the same
// values.
func FromValues(values tree.Map, mapping *profile.Mapping) tree.Map {
	rest, spec := tree.CopyMap(values), tree.Map{}
	for _, f := range mapping.Values {
		move(rest, strings.Split(f.Value, "."), spec, strings.Split(f.Spec, "."))
	}
	for i := range mapping.Components {
		c := &mapping.Components[i]
		if c.Alias != "" {
			continue
		}
		part := tree.Map{}
		for _, s := range c.Switches {
			move(rest, strings.Split(s, "."), part, []string{"enabled"})
		}
		for _, f := range c.Values {
			from := append(append([]string{}, c.RootPath()...), strings.Split(f.Value, ".")...)
			move(rest, from, part, strings.Split(f.Spec, "."))
		}
		if c.List {
			root := c.RootPath()
			move(rest, append(append([]string{}, root...), "enabled"), part, []string{"enabled"})
			if len(part) > 0 {
				part["name"] = root[len(root)-1]
				tree.Put(spec, []any{part}, "components", c.Name)
			}
			continue
		}
		if len(part) > 0 {
			tree.Put(spec, part, "components", c.Name)
		}
	}
	if len(rest) > 0 {
		spec["values"] = rest
	}
	return spec
}

// move moves a value, and removes the mappings that become empty by it.
func move(from tree.Map, at []string, to tree.Map, as []string) {
	v, ok := tree.Get(from, at...)
	if !ok || v == nil {
		return
	}
	tree.Put(to, v, as...)
	tree.Delete(from, at...)
	for n := len(at) - 1; n > 0; n-- {
		if m := tree.GetMap(from, at[:n]...); m == nil || len(m) > 0 {
			return
		}
		tree.Delete(from, at[:n]...)
	}
}
