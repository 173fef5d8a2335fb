package support

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/config-watcher/internal/kinds"
)

var tables = map[string]struct {
	text string
	rows map[string]row
}{"unsupported": {unsupportedTable, unsupported}, "ineffective": {ineffectiveTable, ineffective}}

// TestTablesNameFieldsThatExist: every row of the tables names a field that exists.
func TestTablesNameFieldsThatExist(t *testing.T) {
	for name, table := range tables {
		t.Run(name, func(t *testing.T) {
			rows := 0
			for line := range strings.Lines(table.text) {
				if !strings.HasPrefix(line, "#") {
					rows++
				}
			}
			if rows != len(table.rows) {
				t.Errorf("%d rows, of which %d could be read: each must be `field | reason | remedy`, once", rows, len(table.rows))
			}
			for path := range table.rows {
				if reason := unknownField(path); reason != "" {
					t.Errorf("%s: %s", path, reason)
				}
			}
		})
	}
	for path := range ineffective {
		for at := path; at != ""; at = at[:max(strings.LastIndexByte(at, '.'), 0)] {
			if _, both := unsupported[at]; both {
				t.Errorf("%s is refused, or below what is refused, and of no effect", path)
			}
		}
	}
}

// unknownField returns what is wrong with a row's path; "" if the field exists.
func unknownField(path string) string {
	kindName, rest, _ := strings.Cut(path, ".")
	var d protoreflect.MessageDescriptor
	if kindName == "MeshConfig" {
		d = (&mesh.MeshConfig{}).ProtoReflect().Descriptor()
	}
	for _, k := range kinds.All() {
		if k.Name == kindName && k.NewSpec != nil {
			d = k.NewSpec().ProtoReflect().Descriptor()
		}
	}
	if d == nil {
		return "there is no such kind"
	}
	if rest == "" {
		return ""
	}
	var f protoreflect.FieldDescriptor
	parts := strings.Split(rest, ".")
	for i, part := range parts {
		if f != nil && f.Enum() != nil && i == len(parts)-1 {
			if f.Enum().Values().ByName(protoreflect.Name(part)) == nil {
				return "the enum has no such value"
			}
			break
		}
		if d == nil || d.Fields().ByJSONName(part) == nil {
			return "there is no field " + part
		}
		f = d.Fields().ByJSONName(part)
		if d = f.Message(); f.IsMap() {
			d = f.MapValue().Message()
		}
	}
	return ""
}

func TestTablesAreSortedByKind(t *testing.T) {
	for name, table := range tables {
		var order []string
		for line := range strings.Lines(table.text) {
			kindName, _, _ := strings.Cut(strings.Fields(line)[0], ".")
			if !strings.HasPrefix(line, "#") && (len(order) == 0 || order[len(order)-1] != kindName) {
				order = append(order, kindName)
			}
		}
		if sorted := slices.Compact(slices.Sorted(slices.Values(order))); len(sorted) != len(order) {
			t.Errorf("%s: rows of one kind stand apart: %v", name, order)
		}
	}
}
