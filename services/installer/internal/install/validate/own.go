package validate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

// ownValue checks a value that the package has beside Istio's.
func (c *checker) ownValue(keys []string, v any, s *profile.Schema) {
	if v == nil {
		return
	}
	if types := s.Types(); len(types) > 0 && !slices.ContainsFunc(types, func(t string) bool { return isType(v, t) }) {
		c.wrong(keys, v, strings.Join(types, " or "))
		return
	}
	if len(s.Enum) > 0 {
		c.option(keys, v, s.Enum)
		return
	}
	switch v := v.(type) {
	case []any:
		for i, item := range v {
			if s.Items != nil {
				c.ownValue(below(keys, strconv.Itoa(i)), item, s.Items)
			}
		}
	case tree.Map:
		other, open := s.Other()
		for _, k := range tree.Keys(v) {
			switch field := s.Properties[k]; {
			case field != nil:
				c.ownValue(below(keys, k), v[k], field)
			case !open:
				c.unknown(below(keys, k), slices.Sorted(maps.Keys(s.Properties)))
			case other != nil:
				c.ownValue(below(keys, k), v[k], other)
			}
		}
	}
}

// isType tells of types of JSON Schema.
func isType(v any, name string) bool {
	switch v := v.(type) {
	case string:
		return name == "string"
	case bool:
		return name == "boolean"
	case float64:
		return name == "number" || name == "integer" && v == float64(int64(v))
	case []any:
		return name == "array"
	case tree.Map:
		return name == "object"
	}
	return false
}

// settings warns of values that the package has no use for, and of components that it does not have.
func (c *checker) settings(spec tree.Map, mapping *profile.Mapping) {
	for i := range mapping.Components {
		m := &mapping.Components[i]
		part := tree.GetMap(spec, "components", m.Name)
		if enabled, said := part["enabled"].(bool); m.Absent != "" && part != nil && (enabled || !said) {
			c.warn([]string{"components", m.Name}, "it has no effect: %s", m.Absent)
		}
		if over := mapping.Component(m.Under); over != nil && part["enabled"] == true &&
			tree.GetMap(spec, "components", over.Name)["enabled"] != true && tree.GetMap(spec, "components", m.With)["enabled"] != true {
			c.refuse([]string{"components", m.Name, "enabled"}, "it is part of components.%s, which is disabled; enable that, or disable this",
				over.Name)
		}
	}
	if len(mapping.Settings) > 0 {
		c.unused([]string{"values"}, tree.GetMap(spec, "values"), mapping)
		c.variables([]string{"components"}, tree.GetMap(spec, "components"), mapping)
	}
	if len(mapping.NoLabels) > 0 {
		c.selectors(nil, spec, mapping.NoLabels)
	}
}

// variables warns of variables of components that no program of the package reads, as of the same ones in values.
func (c *checker) variables(keys []string, v any, mapping *profile.Mapping) {
	each(keys, v, func(keys []string, at tree.Map) {
		list, _ := at["env"].([]any)
		if len(keys) == 0 || keys[len(keys)-1] != "k8s" {
			return
		}
		for i, item := range list {
			one, _ := item.(tree.Map)
			name, _ := one["name"].(string)
			if s := mapping.Setting("values.pilot.env." + name); s != nil && s.Instead != "" {
				c.warn(below(below(keys, "env"), strconv.Itoa(i)), "%s has no effect in this install package: %s", name, s.Instead)
			}
		}
	})
}

// selectors warns of selectors of Pods by labels that no Pod of the package has.
func (c *checker) selectors(keys []string, v any, absent map[string]string) {
	each(keys, v, func(keys []string, at tree.Map) {
		labels, _ := at["matchLabels"].(tree.Map)
		for _, k := range tree.Keys(labels) {
			if instead := absent[fmt.Sprintf("%s=%v", k, labels[k])]; instead != "" {
				c.warn(below(below(keys, "matchLabels"), k), "no Pod of this install package has the label %s: %v: %s", k, labels[k], instead)
			}
		}
		list, _ := at["matchExpressions"].([]any)
		for i, item := range list {
			one, _ := item.(tree.Map)
			all, _ := one["values"].([]any)
			for _, value := range all {
				if instead := absent[fmt.Sprintf("%v=%v", one["key"], value)]; instead != "" {
					c.warn(below(below(keys, "matchExpressions"), strconv.Itoa(i)), "no Pod of this install package has the label %v: %v: %s", one["key"],
						value, instead)
				}
			}
		}
	})
}

// each visits every mapping of a tree, from the outside in.
func each(keys []string, v any, visit func(keys []string, at tree.Map)) {
	switch v := v.(type) {
	case tree.Map:
		visit(keys, v)
		for _, k := range tree.Keys(v) {
			each(below(keys, k), v[k], visit)
		}
	case []any:
		for i, item := range v {
			each(below(keys, strconv.Itoa(i)), item, visit)
		}
	}
}

// unused warns of values below keys that have no counterpart.
func (c *checker) unused(keys []string, at tree.Map, mapping *profile.Mapping) {
	for _, k := range tree.Keys(at) {
		keys := below(keys, k)
		if table, ok := at[k].(tree.Map); ok {
			c.unused(keys, table, mapping)
			continue
		}
		if at[k] == nil || mapping.Schema.At(keys[1:]...) != nil || c.ownBelow(keys[1:]) {
			continue
		}
		switch s := mapping.Setting(strings.Join(keys, ".")); {
		case s != nil && s.Does != "":
		case s == nil || s.Instead == "":
			c.warn(keys, "it has no effect: this install package has no counterpart")
		default:
			c.warn(keys, "it has no effect in this install package: %s", s.Instead)
		}
	}
}

// ownBelow tells of a value below one of the package's own that may have any fields.
func (c *checker) ownBelow(keys []string) bool {
	for n := len(keys) - 1; n > 0; n-- {
		if s := c.own.At(keys[:n]...); s != nil {
			_, open := s.Other()
			return open && len(s.Properties) == 0
		}
	}
	return false
}
