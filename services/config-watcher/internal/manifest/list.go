package manifest

import (
	"cmp"
	"fmt"
	"strings"

	"fairlead.dev/services/config-watcher/internal/object"
)

// items returns the objects of a List, each with its own line, and any other document as it is. A List is an object of
// "kind: List" or of a kind such as VirtualServiceList, which an API server answers with; items of the latter may leave
// out apiVersion and kind. Lists inside Lists are divided too.
func items(doc *Document) ([]*Document, *object.Problem) {
	kind, _ := doc.Tree["kind"].(string)
	of, isList := strings.CutSuffix(kind, "List")
	list, divisible := doc.Tree["items"].([]any)
	if !isList || !divisible && kind != "List" {
		return []*Document{doc}, nil
	}
	if value, given := doc.Tree["items"]; !divisible && (!given || value != nil) {
		return nil, &object.Problem{Location: doc.FieldLocation("items"), Object: kind, Field: "items", Reason: "not a list of objects",
			Remedy: "list the objects under items"}
	}
	var out []*Document
	var first *object.Problem
	for i, item := range list {
		tree, ok := item.(map[string]any)
		field := fmt.Sprintf("items[%d]", i)
		if !ok {
			if first == nil {
				first = &object.Problem{Location: doc.FieldLocation(field), Object: kind, Field: field, Reason: "not an object",
					Remedy: "start it with apiVersion, kind and metadata"}
			}
			continue
		}
		if of != "" && tree["kind"] == nil {
			tree["kind"] = of
		}
		if of != "" && tree["apiVersion"] == nil {
			tree["apiVersion"] = doc.Tree["apiVersion"]
		}
		item := &Document{File: doc.File, Tree: tree, text: doc.text, first: doc.first, lines: doc.index(),
			prefix: strings.TrimPrefix(doc.prefix+"."+field, ".")}
		item.Line = item.line("")
		got, problem := items(item)
		out = append(out, got...)
		first = cmp.Or(first, problem)
	}
	return out, first
}
