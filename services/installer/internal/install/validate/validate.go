package validate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

// Problem is one thing wrong with a field of the spec.
type Problem struct {
	// Keys lead to the field from the spec; items of lists are their indices.
	Keys []string
	// Text says what is wrong, and what to write instead.
	Text string
	// Warning is set for what has no effect, or is an older form.
	Warning bool
}

// Path is the field as --set names it.
func (p Problem) Path() string {
	var path tree.Path
	for _, k := range p.Keys {
		if n, err := strconv.Atoi(k); err == nil && n >= 0 && len(path) > 0 {
			path = append(path, tree.Step{Selector: &tree.Selector{Index: n}})
			continue
		}
		path = append(path, tree.Step{Key: k})
	}
	return path.String()
}

// maxProblems bounds the list; the rest would not be read.
const maxProblems = 50

// checker collects problems.
type checker struct {
	problems []Problem
	// own are the values that the package has beside Istio's; nil if it has none.
	own *profile.Schema
}

func (c *checker) say(warning bool, keys []string, format string, args ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, Problem{Keys: slices.Clone(keys), Text: fmt.Sprintf(format, args...), Warning: warning})
	}
}

func (c *checker) refuse(keys []string, format string, args ...any) {
	c.say(false, keys, format, args...)
}

func (c *checker) warn(keys []string, format string, args ...any) {
	c.say(true, keys, format, args...)
}

func below(keys []string, more ...string) []string {
	return append(keys[:len(keys):len(keys)], more...)
}

func (c *checker) unknown(keys []string, known []string) {
	name := keys[len(keys)-1]
	c.refuse(keys, "unknown field%s", nearest.Hint(name, known))
}

func (c *checker) wrong(keys []string, v any, want string) {
	got := tree.Kind(v)
	switch v := v.(type) {
	case string:
		got = strconv.Quote(short(v))
	case float64, bool:
		got = fmt.Sprint(v)
	}
	c.refuse(keys, "%s must be %s", got, want)
}

func short(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// Check judges a merged spec. The mapping says which components there are.
func Check(spec tree.Map, mapping *profile.Mapping) []Problem {
	c := &checker{own: mapping.Schema}
	c.spec(spec, mapping)
	c.values(spec["values"])
	c.meshConfig([]string{"meshConfig"}, spec["meshConfig"])
	if len(c.problems) == 0 || !slices.ContainsFunc(c.problems, func(p Problem) bool { return !p.Warning }) {
		c.rules(spec, mapping)
	}
	slices.SortStableFunc(c.problems, func(a, b Problem) int { return strings.Compare(a.Path(), b.Path()) })
	return c.problems
}

func (c *checker) spec(spec tree.Map, mapping *profile.Mapping) {
	c.fields(nil, spec, specType)
	parts, ok := spec["components"].(tree.Map)
	if v := spec["components"]; !ok {
		if v != nil {
			c.wrong([]string{"components"}, v, "a mapping")
		}
		return
	}
	var known []string
	for _, m := range mapping.Components {
		if m.Alias == "" {
			known = append(known, m.Name)
		}
	}
	for _, name := range tree.Keys(parts) {
		keys := []string{"components", name}
		m := mapping.Component(name)
		if m == nil || m.Alias != "" {
			c.unknown(keys, known)
			continue
		}
		if !m.List {
			c.component(keys, parts[name], m)
			continue
		}
		list, ok := parts[name].([]any)
		if !ok && parts[name] != nil {
			c.wrong(keys, parts[name], "a list")
		}
		for i, item := range list {
			c.component(below(keys, strconv.Itoa(i)), item, m)
		}
	}
}

// component checks the fields of one component. A component of a list has a name and a label, others have not.
func (c *checker) component(keys []string, v any, m *profile.Component) {
	part, ok := v.(tree.Map)
	if !ok {
		if v != nil {
			c.wrong(keys, v, "a mapping")
		}
		return
	}
	without := slices.Clone(m.Without)
	if !m.List {
		without = append(without, "name", "label")
	}
	fields := structFields(componentType)
	for _, name := range without {
		delete(fields, name)
		if _, ok := part[name]; ok {
			c.unknown(below(keys, name), names(fields))
		}
	}
	part = tree.Merge(part, nil)
	for _, name := range without {
		delete(part, name)
	}
	c.fields(keys, part, componentType)
}
