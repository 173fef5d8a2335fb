package decode

import (
	"maps"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/pkg/envoyapi"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

// Packed checks the value of an EnvoyFilter's patch against the message that it is a part of. It looks into
// google.protobuf.Any too, and an unknown field is a warning.
func Packed(v *Verdict, path string, value *structpb.Struct, desc protoreflect.MessageDescriptor) {
	d := Decoder{Verdict: v, packed: true}
	d.message(path, integers(value.AsMap()), desc)
}

// integers turns the numbers of a Struct, which are all float64, into int64 if they are whole.
func integers(v any) any {
	switch t := v.(type) {
	case float64:
		if t == math.Trunc(t) && math.Abs(t) < 1<<53 {
			return int64(t)
		}
	case map[string]any:
		for k := range t {
			t[k] = integers(t[k])
		}
	case []any:
		for i := range t {
			t[i] = integers(t[i])
		}
	}
	return v
}

// any checks a packed message by its @type.
func (d *Decoder) any(path string, v any) {
	m, ok := v.(map[string]any)
	if !ok {
		d.Fail(path, v, "expected an object, found "+TypeName(v), "write @type and the fields of that type")
		return
	}
	url, _ := m["@type"].(string)
	if url == "" {
		d.Fail(manifest.Field(path, "@type"), nil, "missing",
			`name the message, like "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua`)
		return
	}
	desc := d.messageType(manifest.Field(path, "@type"), url)
	if desc == nil {
		return
	}
	rest := maps.Clone(m)
	delete(rest, "@type")
	switch {
	case envoyapi.IsTypedStruct(desc.FullName()):
		d.typedStruct(path, rest)
	case desc.ParentFile().Package() == "google.protobuf":
		// The JSON of these messages is no object of their fields, and stands under value.
		d.message(manifest.Field(path, "value"), rest["value"], desc)
	default:
		d.message(path, rest, desc)
	}
}

func (d *Decoder) typedStruct(path string, m map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains([]string{"type_url", "typeUrl", "value"}, name) {
			d.unknown(path, name, []string{"type_url", "value"}, m)
		}
	}
	at := "type_url"
	url, _ := m[at].(string)
	if url == "" {
		at = "typeUrl"
		url, _ = m[at].(string)
	}
	if desc := d.messageType(manifest.Field(path, at), url); desc != nil {
		d.message(manifest.Field(path, "value"), m["value"], desc)
	}
}

func (d *Decoder) messageType(path, url string) protoreflect.MessageDescriptor {
	t, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	if err == nil {
		return t.Descriptor()
	}
	remedy := "use a type of Envoy's, of the v3 API; extensions that only other builds have cannot be configured"
	var names []string
	wanted := url[strings.LastIndexByte(url, '/')+1:]
	simple := wanted[strings.LastIndexByte(wanted, '.')+1:]
	protoregistry.GlobalTypes.RangeMessages(func(t protoreflect.MessageType) bool {
		if desc := t.Descriptor(); strings.HasPrefix(string(desc.FullName()), "envoy.") && string(desc.Name()) == simple {
			names = append(names, string(desc.FullName()))
		}
		return true
	})
	slices.Sort(names)
	if len(names) > 0 && len(names) <= 3 {
		remedy = "did you mean " + strings.Join(names, " or ") + "?"
	}
	d.Fail(path, url, "unknown type", remedy)
	return nil
}
