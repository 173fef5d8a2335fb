package merge

import (
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

// modern turns older forms of one input into today's, in the spec itself: addon components, gateways as a mapping,
// namespaces of the whole installation, enablement in values, components that are part of others now.
func (m *Merged) modern(spec tree.Map, from string, mapping *profile.Mapping) error {
	if addons, ok := spec["addonComponents"]; ok {
		if table, isMap := addons.(tree.Map); addons != nil && !isMap {
			return fmt.Errorf("%s: addonComponents is %s; it must be a mapping", from, tree.Kind(addons))
		} else if len(table) > 0 {
			m.warn("%s: addonComponents has no effect: no package has addons any more; install %s on their own", from,
				strings.Join(tree.Keys(table), ", "))
		}
		delete(spec, "addonComponents")
	}
	for _, field := range []string{"namespace", "defaultNamespace"} {
		ns, ok := spec[field].(string)
		if !ok || ns == "" {
			continue
		}
		m.warn("%s: %s is an older form of values.global.istioNamespace", from, field)
		delete(spec, field)
		if err := m.move(spec, ns, "values", "global", "istioNamespace"); err != nil {
			return err
		}
	}
	components, _ := spec["components"].(tree.Map)
	for i := range mapping.Components {
		c := &mapping.Components[i]
		if part, ok := components[c.Name]; ok && c.Alias != "" {
			m.warn("%s: components.%s has no effect: it is part of components.%s now", from, c.Name, c.Alias)
			if _, isMap := part.(tree.Map); isMap || part == nil {
				delete(components, c.Name)
			}
		}
		if table, ok := components[c.Name].(tree.Map); ok && c.List {
			list, err := listed(table)
			if err != nil {
				return fmt.Errorf("%s: components.%s: %w", from, c.Name, err)
			}
			m.warn("%s: components.%s is a mapping, an older form; write a list of items with names", from, c.Name)
			components[c.Name] = list
		}
	}
	return m.enablement(spec, from, mapping)
}

// listed turns a mapping of names to parts into a list of parts with names.
func listed(table tree.Map) ([]any, error) {
	var list []any
	for _, name := range tree.Keys(table) {
		part, ok := table[name].(tree.Map)
		if table[name] != nil && !ok {
			return nil, fmt.Errorf("%s is %s; it must be a mapping", name, tree.Kind(table[name]))
		}
		part = tree.Merge(part, tree.Map{"name": name})
		list = append(list, part)
	}
	return list, nil
}

// move sets a field that an older form speaks of, unless the input sets it in today's form, too.
func (m *Merged) move(spec tree.Map, value any, keys ...string) error {
	for i := 1; i < len(keys); i++ {
		if v, ok := tree.Get(spec, keys[:i]...); ok && v != nil {
			if _, isMap := v.(tree.Map); !isMap {
				return fmt.Errorf("%s is %s; it must be a mapping", strings.Join(keys[:i], "."), tree.Kind(v))
			}
		}
	}
	if _, ok := tree.Get(spec, keys...); !ok {
		tree.Put(spec, value, keys...)
	}
	return nil
}

// enablement moves enablement that values say to the components: values.pilot.enabled to components.pilot.enabled. It
// wins, because it is what an installation by Helm values said.
func (m *Merged) enablement(spec tree.Map, from string, mapping *profile.Mapping) error {
	for i := range mapping.Components {
		c := &mapping.Components[i]
		paths := slices.Clone(c.Switches)
		if at := strings.Join(append(c.RootPath(), "enabled"), "."); c.List {
			paths = append(paths, at)
		}
		for _, p := range paths {
			keys := append([]string{"values"}, strings.Split(p, ".")...)
			enabled, ok := tree.Get(spec, keys...)
			on, isBool := enabled.(bool)
			if !ok || !isBool {
				continue
			}
			tree.Delete(spec, keys...)
			m.warn("%s: values.%s is an older form of components.%s", from, p, c.Name)
			if err := m.enable(spec, c, on); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Merged) enable(spec tree.Map, c *profile.Component, on bool) error {
	if !c.List {
		if err := m.move(spec, on, "components", c.Name, "enabled"); err != nil {
			return err
		}
		tree.Put(spec, on, "components", c.Name, "enabled")
		return nil
	}
	path := c.RootPath()
	name := path[len(path)-1]
	list, _ := tree.Get(spec, "components", c.Name)
	items, _ := list.([]any)
	selector := tree.Selector{ByValue: true, Key: "name", Value: name}
	if at := selector.Find(items); at >= 0 {
		items[at].(tree.Map)["enabled"] = on
		return nil
	}
	return m.move(spec, append(items, tree.Map{"name": name, "enabled": on}), "components", c.Name)
}
