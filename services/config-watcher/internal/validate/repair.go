package validate

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// repair removes from a tree the fields that strict decoding has refused since the object had before problems, so that
// the checks can read the rest. From then on fail and remark drop problems that only follow from a removed field.
// usable is false if nothing is left to check.
func (c *checker) repair(path string, tree any, d protoreflect.MessageDescriptor, before int) (repaired any, usable bool) {
	if len(c.problems) == before {
		c.missing = append(c.missing, c.meant...)
		return tree, true
	}
	if !c.leaveOut(path, before) {
		return nil, false
	}
	refused := map[string]bool{}
	for _, p := range c.problems[before:] {
		refused[p.Field] = true
	}
	return without(path, tree, d, refused), true
}

// leaveOut records the fields of all problems since the object had before of them as missing. It returns false if there
// are too many problems to know all of them, or if the field at path itself is refused.
func (c *checker) leaveOut(path string, before int) bool {
	for _, p := range c.problems[before:] {
		if p.Field == path {
			return false
		}
		c.missing = append(c.missing, p.Field)
	}
	c.missing = append(c.missing, c.meant...)
	return len(c.problems) < maxProblems
}

// follows reports whether a problem at a path may only be the consequence of a refused field: it lies in that field, in
// the field that a misspelt name stands for, or it is about the object that lacks the field.
func (c *checker) follows(path string) bool {
	return slices.ContainsFunc(c.missing, func(m string) bool {
		return path == m || strings.HasPrefix(path, m) && (path[len(m)] == '.' || path[len(m)] == '[') || path == parent(m)
	})
}

// parent is the path of the object or list that holds a field.
func parent(path string) string {
	end := strings.LastIndexAny(path, ".[")
	if strings.HasSuffix(path, `"]`) {
		end = strings.LastIndex(path, `["`)
	}
	return path[:max(end, 0)]
}

// without copies a tree without the refused paths. Items of lists keep their index: an empty item replaces a refused
// one.
func without(path string, v any, d protoreflect.MessageDescriptor, refused map[string]bool) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	out := maps.Clone(m)
	for name, inner := range m {
		at := field(path, name)
		f := fieldOf(d, name)
		switch {
		case refused[at] || f == nil:
			delete(out, name)
		case f.IsMap():
			out[name] = entriesWithout(at, inner, f.MapValue().Message(), refused)
		case f.IsList():
			out[name] = itemsWithout(at, inner, f, refused)
		case f.Message() != nil:
			out[name] = without(at, inner, f.Message(), refused)
		}
	}
	return out
}

func entriesWithout(path string, v any, d protoreflect.MessageDescriptor, refused map[string]bool) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	out := maps.Clone(m)
	for key, inner := range m {
		at := field(path, key)
		if refused[at] {
			delete(out, key)
		} else if d != nil {
			out[key] = without(at, inner, d, refused)
		}
	}
	return out
}

func itemsWithout(path string, v any, f protoreflect.FieldDescriptor, refused map[string]bool) any {
	l, ok := v.([]any)
	if !ok {
		return v
	}
	out := slices.Clone(l)
	for i, inner := range l {
		at := index(path, i)
		switch {
		case refused[at] && f.Message() != nil:
			out[i] = map[string]any{}
		case refused[at] && f.Kind() == protoreflect.StringKind:
			out[i] = ""
		case refused[at]:
			out[i] = int64(0)
		case f.Message() != nil:
			out[i] = without(at, inner, f.Message(), refused)
		}
	}
	return out
}

// fieldOf finds a field by its JSON name or its proto name; nil if there is none.
func fieldOf(d protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if f := d.Fields().ByJSONName(name); f != nil {
		return f
	}
	return d.Fields().ByTextName(name)
}
