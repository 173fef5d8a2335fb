package decode

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

// message compares a JSON tree with a message's schema. It reports what protobuf's decoder drops or describes
// poorly: unknown fields, wrong types, unknown enum values, two fields of one oneof.
func (d *Decoder) message(path string, v any, desc protoreflect.MessageDescriptor) {
	if v == nil || d.wellKnown(path, v, desc) {
		return
	}
	m, ok := v.(map[string]any)
	if !ok {
		d.Fail(path, v, "expected an object, found "+TypeName(v), "write its fields below it")
		return
	}
	chosen := map[protoreflect.Name]string{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		f := FieldOf(desc, name)
		if f == nil {
			d.unknown(path, name, d.fieldNames(desc), m)
			continue
		}
		child := manifest.Field(path, name)
		if one := f.ContainingOneof(); one != nil && !one.IsSynthetic() && m[name] != nil {
			if other := chosen[one.Name()]; other != "" {
				d.Fail(child, nil, "cannot be set together with "+other, "keep one of them")
				continue
			}
			chosen[one.Name()] = name
		}
		d.field(child, m[name], f)
	}
}

func (d *Decoder) field(path string, v any, f protoreflect.FieldDescriptor) {
	if v == nil {
		return
	}
	switch {
	case f.IsMap():
		m, ok := v.(map[string]any)
		if !ok {
			d.Fail(path, v, "expected a map, found "+TypeName(v), "write key: value pairs below it")
			return
		}
		for _, key := range slices.Sorted(maps.Keys(m)) {
			at := manifest.Field(path, key)
			d.mapKey(at, key, f.MapKey())
			d.singular(at, m[key], f.MapValue())
		}
	case f.IsList():
		l, ok := v.([]any)
		if !ok {
			d.Fail(path, v, "expected a list, found "+TypeName(v), `write its items as "- ..." below it`)
			return
		}
		for at, item := range manifest.Items(path, l) {
			if item == nil {
				d.Fail(at, nil, "item is empty", "remove it or fill it in")
				continue
			}
			d.singular(at, item, f)
		}
	default:
		d.singular(path, v, f)
	}
}

func (d *Decoder) mapKey(path, key string, f protoreflect.FieldDescriptor) {
	switch f.Kind() {
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		_, err := strconv.ParseUint(key, 10, 32)
		d.FailIf(err != nil, path, key, "key is no number", "use a number such as 8080")
	}
}

func (d *Decoder) singular(path string, v any, f protoreflect.FieldDescriptor) {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		d.message(path, v, f.Message())
	case protoreflect.EnumKind:
		d.enum(path, v, f.Enum())
	default:
		d.scalar(path, v, f.Kind())
	}
}

func (d *Decoder) enum(path string, v any, e protoreflect.EnumDescriptor) {
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
			d.Fail(path, v, "unknown value", remedy)
		}
	case int64:
		d.FailIf(t < -1<<31 || t > 1<<31-1 || e.Values().ByNumber(protoreflect.EnumNumber(t)) == nil, path, v, "unknown value",
			"use the value's name")
	default:
		d.Fail(path, v, "expected a name, found "+TypeName(v), "use the value's name")
	}
}

func (d *Decoder) scalar(path string, v any, k protoreflect.Kind) {
	switch k {
	case protoreflect.StringKind, protoreflect.BytesKind:
		if _, ok := v.(string); !ok {
			d.Fail(path, v, "expected a string, found "+TypeName(v), "put it in quotes")
		}
	case protoreflect.BoolKind:
		if _, ok := v.(bool); !ok {
			d.Fail(path, v, "expected true or false, found "+TypeName(v), "write true or false without quotes")
		}
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		switch t := v.(type) {
		case int64, float64:
		case string:
			if _, err := strconv.ParseFloat(t, 64); err != nil {
				d.Fail(path, v, "expected a number, found a string", "write the number without quotes or units")
			}
		default:
			d.Fail(path, v, "expected a number, found "+TypeName(v), "write the number without quotes or units")
		}
	default:
		d.integer(path, v, k)
	}
}

func (d *Decoder) integer(path string, v any, k protoreflect.Kind) {
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
			d.Fail(path, v, "expected a whole number, found a string", "write the number without quotes or units")
			return
		}
		f = n
	default:
		d.Fail(path, v, "expected a whole number, found "+TypeName(v), "write the number without quotes or units")
		return
	}
	switch {
	case f != float64(int64(f)) && f < 9e18:
		d.Fail(path, v, "expected a whole number", "round it")
	case f < lo || f > hi:
		d.Fail(path, v, fmt.Sprintf("out of range %.0f to %.0f", lo, hi), "use a value within it")
	}
}

// wellKnown checks messages whose JSON is not an object of their fields; it returns false for all others.
func (d *Decoder) wellKnown(path string, v any, desc protoreflect.MessageDescriptor) bool {
	switch desc.FullName() {
	case "google.protobuf.Duration":
		d.duration(path, v)
	case "google.protobuf.Timestamp":
		s, isString := v.(string)
		if _, err := ParseTime(s); !isString || err != nil {
			d.Fail(path, v, "no point in time", `write it like "2026-01-31T12:00:00Z"`)
		}
	case "google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue", "google.protobuf.FieldMask", "google.protobuf.Empty":
		// Free-form; protobuf's decoder checks the rest.
	case "google.protobuf.Any":
		if d.packed {
			d.any(path, v)
		}
	case "google.protobuf.BoolValue", "google.protobuf.StringValue", "google.protobuf.BytesValue", "google.protobuf.DoubleValue",
		"google.protobuf.FloatValue",
		"google.protobuf.Int32Value", "google.protobuf.Int64Value", "google.protobuf.UInt32Value", "google.protobuf.UInt64Value":
		d.scalar(path, v, desc.Fields().ByName("value").Kind())
	default:
		return false
	}
	return true
}

// duration checks the text of a duration: Go's form, which includes protobuf's ("1.5s").
func (d *Decoder) duration(path string, v any) {
	s, ok := v.(string)
	if !ok {
		d.Fail(path, v, "expected a duration, found "+TypeName(v), `write it with its unit, like "0.5s"`)
		return
	}
	if _, err := time.ParseDuration(s); err != nil {
		d.Fail(path, s, "not a duration", `write it with its unit, like "0.5s", "10ms" or "1h30m"`)
	}
}

// fieldNames lists the names that a user may write in a message.
func (d *Decoder) fieldNames(desc protoreflect.MessageDescriptor) []string {
	out := FieldNames(desc)
	if own := d.Beside[desc.FullName()]; own != "" {
		out = append(out, own)
	}
	return out
}

// FieldNames lists the JSON names of a message's fields.
func FieldNames(desc protoreflect.MessageDescriptor) []string {
	out := make([]string, desc.Fields().Len())
	for i := range out {
		out[i] = desc.Fields().Get(i).JSONName()
	}
	return out
}
