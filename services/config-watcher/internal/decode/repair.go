package decode

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"fairlead.dev/services/config-watcher/internal/manifest"
)

// repair removes from a tree the fields that strict decoding has refused since the object had before problems, so that
// the checks can read the rest. From then on the Verdict drops problems that only follow from a removed field.
// usable is false if nothing is left to check.
func (d *Decoder) repair(path string, tree any, desc protoreflect.MessageDescriptor, before int) (repaired any, usable bool) {
	if len(d.Problems) == before {
		d.missing = append(d.missing, d.meant...)
		return tree, true
	}
	if !d.leaveOut(path, before) {
		return nil, false
	}
	refused := map[string]bool{}
	for _, p := range d.Problems[before:] {
		refused[p.Field] = true
	}
	return without(path, tree, desc, refused), true
}

// leaveOut records the fields of all problems since the object had before of them as missing. It returns false if there
// are too many problems to know all of them, or if the field at path itself is refused.
func (d *Decoder) leaveOut(path string, before int) bool {
	for _, p := range d.Problems[before:] {
		if p.Field == path {
			return false
		}
		d.missing = append(d.missing, p.Field)
	}
	d.missing = append(d.missing, d.meant...)
	return len(d.Problems) < MaxProblems
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
		at := manifest.Field(path, name)
		f := FieldOf(d, name)
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
		at := manifest.Field(path, key)
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
		at := manifest.Index(path, i)
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

// FieldOf finds a field by its JSON name or its proto name; nil if there is none.
func FieldOf(d protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if f := d.Fields().ByJSONName(name); f != nil {
		return f
	}
	return d.Fields().ByTextName(name)
}
