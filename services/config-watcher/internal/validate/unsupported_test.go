package validate

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	mesh "istio.io/api/mesh/v1alpha1"
)

// TestUnsupportedFieldsExist keeps misspelt rows out of the table: a row that matches no field refuses nothing.
func TestUnsupportedFieldsExist(t *testing.T) {
	rows := 0
	for line := range strings.Lines(unsupportedTable) {
		if !strings.HasPrefix(line, "#") {
			rows++
		}
	}
	if rows != len(unsupported) {
		t.Errorf("%d rows, of which %d could be read: each must be `field | reason | remedy`, once", rows, len(unsupported))
	}
	for path := range unsupported {
		kindName, rest, _ := strings.Cut(path, ".")
		var d protoreflect.MessageDescriptor
		if kindName == "MeshConfig" {
			d = (&mesh.MeshConfig{}).ProtoReflect().Descriptor()
		}
		for i := range kinds {
			if kinds[i].name == kindName && kinds[i].newSpec != nil {
				d = kinds[i].newSpec().ProtoReflect().Descriptor()
			}
		}
		if d == nil {
			t.Errorf("%s: there is no kind %s", path, kindName)
			continue
		}
		var f protoreflect.FieldDescriptor
		parts := strings.Split(rest, ".")
		for i, part := range parts {
			if f != nil && f.Enum() != nil && i == len(parts)-1 {
				if f.Enum().Values().ByName(protoreflect.Name(part)) == nil {
					t.Errorf("%s: the enum has no such value", path)
				}
				break
			}
			if d == nil || d.Fields().ByJSONName(part) == nil {
				t.Errorf("%s: there is no field %s", path, part)
				break
			}
			f = d.Fields().ByJSONName(part)
			if d = f.Message(); f.IsMap() {
				d = f.MapValue().Message()
			}
		}
	}
}

func TestUnsupportedTableIsSortedByKind(t *testing.T) {
	var order []string
	for line := range strings.Lines(unsupportedTable) {
		if kindName, _, ok := strings.Cut(line, "."); ok && !strings.HasPrefix(line, "#") && (len(order) == 0 || order[len(order)-1] != kindName) {
			order = append(order, kindName)
		}
	}
	if sorted := slices.Compact(slices.Sorted(slices.Values(order))); len(sorted) != len(order) {
		t.Errorf("rows of one kind stand apart: %v", order)
	}
}
