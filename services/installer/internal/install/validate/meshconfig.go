package validate

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/installer/internal/install/tree"
)

// onDemandField is Fairlead's own field of a ProxyConfig; config-watcher stores it as an entry of proxyMetadata.
const onDemandField = "onDemand"

var proxyConfig = (&meshv1alpha1.ProxyConfig{}).ProtoReflect().Descriptor().FullName()

// meshConfig checks mesh configuration: config-watcher refuses one with an unknown field or value as a whole, and the
// mesh then runs with the defaults, in which every destination is open.
func (c *checker) meshConfig(keys []string, v any) {
	if v == nil {
		return
	}
	table, ok := v.(tree.Map)
	if !ok {
		c.wrong(keys, v, "a mapping")
		return
	}
	before := len(c.problems)
	config := &meshv1alpha1.MeshConfig{}
	c.meshMessage(keys, table, config.ProtoReflect().Descriptor())
	if len(c.problems) > before {
		return
	}
	// What is wrong with a field alone is found above, and so are unknown fields, Fairlead's own among them.
	if why := decode(table, config); why != "" {
		c.refuse(keys, "it is no MeshConfig: %s", why)
	}
}

// decode decodes JSON's form of a message, and says what is wrong with it.
func decode(table tree.Map, m proto.Message) (why string) {
	text, err := json.Marshal(table)
	if err == nil {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, m)
	}
	if err == nil {
		return ""
	}
	if _, after, ok := strings.Cut(err.Error(), "): "); ok {
		return after
	}
	return err.Error()
}

// meshMessage finds fields that a message does not have, and values that an enumeration does not have.
func (c *checker) meshMessage(keys []string, table tree.Map, m protoreflect.MessageDescriptor) {
	if m.FullName().Parent() == "google.protobuf" {
		return // it has a form of its own in JSON
	}
	for _, k := range tree.Keys(table) {
		f := m.Fields().ByJSONName(k)
		if f == nil {
			f = m.Fields().ByTextName(k)
		}
		at := below(keys, k)
		if f == nil && k == onDemandField && m.FullName() == proxyConfig {
			if _, ok := table[k].(bool); !ok && table[k] != nil {
				c.wrong(at, table[k], "true or false")
			}
			continue
		}
		if f == nil {
			c.unknown(at, fieldNames(m))
			continue
		}
		before, scalar := len(c.problems), false
		switch v := table[k].(type) {
		case []any:
			for i, item := range v {
				c.meshValue(below(at, strconv.Itoa(i)), item, f)
			}
		case tree.Map:
			if !f.IsMap() {
				c.meshValue(at, v, f)
				break
			}
			for _, name := range tree.Keys(v) {
				c.meshValue(below(at, name), v[name], f.MapValue())
			}
		default:
			scalar = true
			c.meshValue(at, v, f)
		}
		if !scalar && messages(f) || len(c.problems) > before {
			continue
		}
		if why := decode(tree.Map{k: table[k]}, dynamicpb.NewMessage(m)); why != "" {
			c.refuse(at, "%s", why)
		}
	}
}

// messages reports whether a field's values are messages that are checked field by field. google.protobuf's have a form
// of their own in JSON.
func messages(f protoreflect.FieldDescriptor) bool {
	if f.IsMap() {
		f = f.MapValue()
	}
	return f.Message() != nil && f.Message().FullName().Parent() != "google.protobuf"
}

// meshValue checks a value of a field, or an item of its list.
func (c *checker) meshValue(keys []string, v any, f protoreflect.FieldDescriptor) {
	switch v := v.(type) {
	case tree.Map:
		if f.Message() != nil {
			c.meshMessage(keys, v, f.Message())
		}
	case string:
		if f.Enum() == nil || f.Enum().Values().ByName(protoreflect.Name(v)) != nil {
			return
		}
		var known []string
		for i := range f.Enum().Values().Len() {
			known = append(known, string(f.Enum().Values().Get(i).Name()))
		}
		c.refuse(keys, "%q must be one of %s%s", short(v), strings.Join(known, ", "), nearest.Hint(v, known))
	}
}

func fieldNames(m protoreflect.MessageDescriptor) []string {
	var names []string
	for i := range m.Fields().Len() {
		names = append(names, m.Fields().Get(i).JSONName())
	}
	slices.Sort(names)
	return names
}
