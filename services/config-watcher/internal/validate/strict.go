package validate

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"fairlead.dev/pkg/nearest"
)

// strictMessage compares a JSON tree with a message's schema. It reports what protobuf's decoder drops or describes
// poorly: unknown fields, wrong types, unknown enum values, two fields of one oneof.
func (c *checker) strictMessage(path string, v any, d protoreflect.MessageDescriptor) {
	if v == nil {
		return
	}
	if c.wellKnown(path, v, d) {
		return
	}
	m, ok := v.(map[string]any)
	if !ok {
		c.fail(path, v, "expected an object, found "+typeName(v), "write its fields below it")
		return
	}
	chosen := map[protoreflect.Name]string{}
	for _, name := range sortedKeys(m) {
		f := fieldOf(d, name)
		if f == nil {
			c.unknown(path, name, fieldNames(d), m)
			continue
		}
		child := field(path, name)
		if one := f.ContainingOneof(); one != nil && !one.IsSynthetic() && m[name] != nil {
			if other := chosen[one.Name()]; other != "" {
				c.fail(child, nil, "cannot be set together with "+other, "keep one of them")
				continue
			}
			chosen[one.Name()] = name
		}
		c.strictField(child, m[name], f)
	}
}

func (c *checker) strictField(path string, v any, f protoreflect.FieldDescriptor) {
	if v == nil {
		return
	}
	switch {
	case f.IsMap():
		m, ok := v.(map[string]any)
		if !ok {
			c.fail(path, v, "expected a map, found "+typeName(v), "write key: value pairs below it")
			return
		}
		for _, key := range sortedKeys(m) {
			at := field(path, key)
			c.strictMapKey(at, key, f.MapKey())
			c.strictSingular(at, m[key], f.MapValue())
		}
	case f.IsList():
		l, ok := v.([]any)
		if !ok {
			c.fail(path, v, "expected a list, found "+typeName(v), `write its items as "- ..." below it`)
			return
		}
		for at, item := range each(path, l) {
			if item == nil {
				c.fail(at, nil, "item is empty", "remove it or fill it in")
				continue
			}
			c.strictSingular(at, item, f)
		}
	default:
		c.strictSingular(path, v, f)
	}
}

func (c *checker) strictMapKey(path, key string, f protoreflect.FieldDescriptor) {
	switch f.Kind() {
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		if _, err := strconv.ParseUint(key, 10, 32); err != nil {
			c.fail(path, key, "key is no number", "use a number such as 8080")
		}
	}
}

func (c *checker) strictSingular(path string, v any, f protoreflect.FieldDescriptor) {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		c.strictMessage(path, v, f.Message())
	case protoreflect.EnumKind:
		c.strictEnum(path, v, f.Enum())
	default:
		c.strictScalar(path, v, f.Kind())
	}
}

func (c *checker) strictEnum(path string, v any, e protoreflect.EnumDescriptor) {
	switch t := v.(type) {
	case string:
		if e.Values().ByName(protoreflect.Name(t)) == nil {
			var names []string
			for i := range e.Values().Len() {
				names = append(names, string(e.Values().Get(i).Name()))
			}
			remedy := "use one of " + strings.Join(names, ", ")
			if near := nearest.Name(t, names); near != "" {
				remedy = "did you mean " + strconv.Quote(near) + "? One of " + strings.Join(names, ", ")
			}
			c.fail(path, v, "unknown value", remedy)
		}
	case int64:
		c.failIf(t < -1<<31 || t > 1<<31-1 || e.Values().ByNumber(protoreflect.EnumNumber(t)) == nil, path, v, "unknown value",
			"use the value's name")
	default:
		c.fail(path, v, "expected a name, found "+typeName(v), "use the value's name")
	}
}

func (c *checker) strictScalar(path string, v any, k protoreflect.Kind) {
	switch k {
	case protoreflect.StringKind, protoreflect.BytesKind:
		if _, ok := v.(string); !ok {
			c.fail(path, v, "expected a string, found "+typeName(v), "put it in quotes")
		}
	case protoreflect.BoolKind:
		if _, ok := v.(bool); !ok {
			c.fail(path, v, "expected true or false, found "+typeName(v), "write true or false without quotes")
		}
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		switch t := v.(type) {
		case int64, float64:
		case string:
			if _, err := strconv.ParseFloat(t, 64); err != nil {
				c.fail(path, v, "expected a number, found a string", "write the number without quotes or units")
			}
		default:
			c.fail(path, v, "expected a number, found "+typeName(v), "write the number without quotes or units")
		}
	default:
		c.strictInteger(path, v, k)
	}
}

func (c *checker) strictInteger(path string, v any, k protoreflect.Kind) {
	lo, hi := -9.3e18, 9.3e18
	switch k {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		lo, hi = -1<<31, 1<<31-1
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		lo, hi = 0, 1<<32-1
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		lo, hi = 0, 1.8e19
	}
	var f float64
	switch t := v.(type) {
	case int64:
		f = float64(t)
	case float64:
		f = t
	case string:
		// JSON has no 64-bit integers: protobuf writes them as strings, and accepts any integer as a string.
		n, err := strconv.ParseFloat(t, 64)
		if err != nil {
			c.fail(path, v, "expected a whole number, found a string", "write the number without quotes or units")
			return
		}
		f = n
	default:
		c.fail(path, v, "expected a whole number, found "+typeName(v), "write the number without quotes or units")
		return
	}
	switch {
	case f != float64(int64(f)) && f < 9e18:
		c.fail(path, v, "expected a whole number", "round it")
	case f < lo || f > hi:
		c.fail(path, v, fmt.Sprintf("out of range %.0f to %.0f", lo, hi), "use a value within it")
	}
}

// wellKnown checks messages whose JSON is not an object of their fields; it returns false for all others.
func (c *checker) wellKnown(path string, v any, d protoreflect.MessageDescriptor) bool {
	switch d.FullName() {
	case "google.protobuf.Duration":
		c.durationText(path, v)
	case "google.protobuf.Timestamp":
		s, isString := v.(string)
		if _, err := parseTime(s); !isString || err != nil {
			c.fail(path, v, "no point in time", `write it like "2026-01-31T12:00:00Z"`)
		}
	case "google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue", "google.protobuf.FieldMask", "google.protobuf.Empty":
		// Free-form; protobuf's decoder checks the rest.
	case "google.protobuf.Any":
		if c.packed {
			c.strictAny(path, v)
		}
	case "google.protobuf.BoolValue", "google.protobuf.StringValue", "google.protobuf.BytesValue", "google.protobuf.DoubleValue",
		"google.protobuf.FloatValue",
		"google.protobuf.Int32Value", "google.protobuf.Int64Value", "google.protobuf.UInt32Value", "google.protobuf.UInt64Value":
		c.strictScalar(path, v, d.Fields().ByName("value").Kind())
	default:
		return false
	}
	return true
}

// unknown reports a field that the schema does not have. If the field that the name may stand for is not among beside,
// problems about that field are left out. In the value of an EnvoyFilter it is a warning, as in Istio: the field may be
// of another release of Envoy.
func (c *checker) unknown(path, name string, known []string, beside map[string]any) {
	if c.packed {
		c.remark(field(path, name), fmt.Sprintf("is left out: unknown field %q", name), suggestion(name, known))
		return
	}
	if near := nearest.Name(name, known); near != "" && beside[near] == nil {
		c.meant = append(c.meant, field(path, near))
	}
	c.fail(field(path, name), nil, fmt.Sprintf("unknown field %q", name), suggestion(name, known))
}

func suggestion(name string, known []string) string {
	if near := nearest.Name(name, known); near != "" {
		return "did you mean " + strconv.Quote(near) + "?"
	}
	return "remove it, or use one of " + strings.Join(known, ", ")
}

func fieldNames(d protoreflect.MessageDescriptor) []string {
	out := make([]string, d.Fields().Len())
	for i := range out {
		out[i] = d.Fields().Get(i).JSONName()
	}
	switch d.FullName() {
	case "istio.mesh.v1alpha1.ProxyConfig", "istio.networking.v1beta1.ProxyConfig":
		out = append(out, onDemandField)
	}
	return out
}

func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "nothing"
	case string:
		return "a string"
	case bool:
		return "true or false"
	case int64, float64:
		return "a number"
	case []any:
		return "a list"
	default:
		return "an object"
	}
}

var kubernetesUnknown = regexp.MustCompile(`^(unknown|duplicate) field "(.*)"$`)

// strictKubernetes turns an error of sigs.k8s.io/json, `unknown field "spec.ports[0].prt"`, into a problem with a
// suggestion from the Go type.
func (c *checker) strictKubernetes(msg string, into any, tree map[string]any) {
	m := kubernetesUnknown.FindStringSubmatch(msg)
	if m == nil {
		c.fail("", nil, msg, "")
		return
	}
	path, name := m[2], m[2]
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		name = path[i+1:]
	}
	if m[1] == "duplicate" {
		c.fail(path, nil, "field is set twice", "keep one of them")
		return
	}
	in := strings.TrimSuffix(strings.TrimSuffix(path, name), ".")
	beside, _ := valueAt(tree, in).(map[string]any)
	c.unknown(in, name, goFields(reflect.TypeOf(into), in), beside)
}

// valueAt returns the value at a path of a tree; nil if there is none.
func valueAt(tree any, path string) any {
	for _, seg := range segments(path) {
		switch t := tree.(type) {
		case map[string]any:
			tree = t[seg]
		case []any:
			i, err := strconv.Atoi(seg)
			if err != nil || i >= len(t) {
				return nil
			}
			tree = t[i]
		}
	}
	return tree
}

func segments(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}

// goFields lists the JSON names of the struct at a path within t.
func goFields(t reflect.Type, path string) []string {
	for _, seg := range segments(path) {
		t = deref(t)
		if _, err := strconv.Atoi(seg); err == nil || t.Kind() == reflect.Map {
			if t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
				t = t.Elem()
			}
			continue
		}
		next, ok := structField(t, seg)
		if !ok {
			return nil
		}
		t = next
	}
	var out []string
	eachField(deref(t), func(name string, _ reflect.Type) { out = append(out, name) })
	return out
}

func structField(t reflect.Type, json string) (found reflect.Type, ok bool) {
	eachField(t, func(name string, ft reflect.Type) {
		if name == json {
			found, ok = ft, true
		}
	})
	return found, ok
}

func eachField(t reflect.Type, f func(name string, t reflect.Type)) {
	if t.Kind() != reflect.Struct {
		return
	}
	for i := range t.NumField() {
		sf := t.Field(i)
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if sf.Anonymous && name == "" {
			eachField(deref(sf.Type), f)
			continue
		}
		if name != "" && name != "-" {
			f(name, sf.Type)
		}
	}
}

func deref(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}
