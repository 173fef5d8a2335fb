package merge

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/installer/internal/install/tree"
)

func hint(word string, known []string) string { return nearest.Hint(word, known) }

// lineOf returns " line N:" of the field in a file, or nothing if it is not found.
func lineOf(f File, keys []string) string {
	var doc yaml.Node
	if yaml.Unmarshal(f.Text, &doc) != nil || len(doc.Content) == 0 {
		return ""
	}
	at := doc.Content[0]
	line := 0
	for _, key := range keys {
		next, l := child(at, key)
		if next == nil {
			return ""
		}
		at, line = next, l
	}
	return strconv.Itoa(line) + ":"
}

// child returns what is below a key of a mapping or an index of a list, and the line where it begins.
func child(n *yaml.Node, key string) (*yaml.Node, int) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				return n.Content[i+1], n.Content[i].Line
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i].Line
		}
	}
	return nil, 0
}

// Where says which input set a field of the spec: "mesh.yaml:12: " of the last file that has it, "--set text: " of a
// setting, or nothing. Keys of list items are their indices.
func (m *Merged) Where(keys []string) string {
	for i := len(m.sets) - 1; i >= 0; i-- {
		if sets(m.sets[i].path, keys) {
			return "--set " + m.sets[i].text + ": "
		}
	}
	for i := len(m.files) - 1; i >= 0; i-- {
		for _, at := range [][]string{append([]string{"spec"}, keys...), keys} {
			if line := lineOf(m.files[i], at); line != "" {
				return m.files[i].Name + ":" + line + " "
			}
		}
	}
	return ""
}

// sets tells whether a setting's path leads to or below the field.
func sets(path tree.Path, keys []string) bool {
	if len(path) < len(keys) {
		return false
	}
	for i, key := range keys {
		if s := path[i].Selector; s != nil {
			if !s.ByValue && strconv.Itoa(s.Index) != key {
				return false
			}
			continue
		}
		if path[i].Key != key {
			return false
		}
	}
	return true
}

// metadataFields are those of Kubernetes' ObjectMeta.
var metadataFields = strings.Fields(
	"name generateName namespace selfLink uid resourceVersion generation creationTimestamp deletionTimestamp deletionGracePeriodSeconds " +
		"labels annotations ownerReferences finalizers managedFields")

func metadata(f File, v any) error {
	m, ok := v.(tree.Map)
	if v != nil && !ok {
		return fmt.Errorf("%s: metadata is %s; it must be a mapping", f.Name, tree.Kind(v))
	}
	for _, k := range tree.Keys(m) {
		known := false
		for _, field := range metadataFields {
			known = known || field == k
		}
		if !known {
			return fmt.Errorf("%s:%s unknown field %q in metadata%s", f.Name, lineOf(f, []string{"metadata", k}), k, hint(k, metadataFields))
		}
	}
	return nil
}
