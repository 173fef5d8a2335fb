package storeapi

import (
	"encoding/json"
	"fmt"

	"fairlead.dev/services/config-watcher/internal/source/memory"
)

// lastApplied is the annotation in which kubectl keeps a copy of the whole object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// redacted replaces the values of a Secret. It is not valid base64, so that nobody writes it back by mistake.
const redacted = "(redacted)"

// shown is an object's manifest for callers. A Secret's shows the names of its entries and no value.
func shown(it *memory.Item) []byte {
	if it.Key.Group != "" || it.Key.Kind != "Secret" {
		return it.Manifest
	}
	var tree map[string]any
	if err := json.Unmarshal(it.Manifest, &tree); err != nil {
		return fmt.Appendf(nil, `{"kind":"Secret","metadata":{"namespace":%q,"name":%q}}`, it.Key.Namespace, it.Key.Name)
	}
	for _, part := range []string{"data", "stringData"} {
		entries, ok := tree[part].(map[string]any)
		if !ok {
			delete(tree, part)
			continue
		}
		for name := range entries {
			entries[name] = redacted
		}
	}
	if meta, ok := tree["metadata"].(map[string]any); ok {
		if annotations, ok := meta["annotations"].(map[string]any); ok {
			if _, ok := annotations[lastApplied]; ok {
				annotations[lastApplied] = redacted
			}
		}
		delete(meta, "managedFields")
	}
	js, err := json.Marshal(tree)
	if err != nil {
		return fmt.Appendf(nil, `{"kind":"Secret","metadata":{"namespace":%q,"name":%q}}`, it.Key.Namespace, it.Key.Name)
	}
	return js
}
