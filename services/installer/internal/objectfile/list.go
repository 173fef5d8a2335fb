package objectfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/yamltext"
)

// items returns the items of a List as objects, each with its own line, and any other object as it is. Lists are of
// kind "List", or the lists of one kind that an API server returns, such as VirtualServiceList, whose items may leave
// out their apiVersion and kind. Lists in Lists are divided too. config-watcher divides the same files in the same way.
func (o *Object) items() ([]*Object, error) {
	of, isList := strings.CutSuffix(o.Kind, "List")
	if !isList {
		return []*Object{o}, nil
	}
	text, err := yaml.YAMLToJSONStrict(o.Raw)
	if err != nil {
		return nil, &Error{File: o.File, Line: o.Line, Problem: CleanYAML(err), Remedy: "correct the YAML"}
	}
	var list struct {
		Items json.RawMessage `json:"items"`
	}
	var items []json.RawMessage
	err = json.Unmarshal(text, &list)
	if err == nil && list.Items != nil {
		err = json.Unmarshal(list.Items, &items)
	}
	switch {
	case o.Kind != "List" && (err != nil || list.Items == nil || bytes.Equal(list.Items, []byte("null"))):
		return []*Object{o}, nil //nolint:nilerr // a kind that only ends with "List"
	case err != nil || list.Items == nil:
		return nil, &Error{File: o.File, Line: o.Line, Object: "List", Field: "items", Problem: "is no list of objects",
			Remedy: "list the objects under items"}
	}
	lines := yamltext.ItemLines(o.Raw)
	var out []*Object
	for i, raw := range items {
		item := &Object{File: o.File, Line: o.Line, Raw: raw}
		if i < len(lines) && o.first > 0 {
			item.Line = o.first + lines[i] - 1
		}
		if err := json.Unmarshal(raw, item); err != nil {
			return out, &Error{File: o.File, Line: item.Line, Object: o.Kind, Field: fmt.Sprintf("items[%d]", i), Problem: CleanYAML(err),
				Remedy: "write an object with apiVersion, kind and metadata"}
		}
		if of != "" {
			item.Kind = cmp.Or(item.Kind, of)
			item.APIVersion = cmp.Or(item.APIVersion, o.APIVersion)
		}
		below, err := item.items()
		out = append(out, below...)
		if err != nil {
			return out, err
		}
	}
	return out, nil
}
