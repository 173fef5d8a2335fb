package storeapi

import (
	"encoding/json"
	"fmt"

	"fairlead.dev/services/config-watcher/internal/source/memory"
)

// lastApplied is where kubectl keeps a copy of the whole object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// redacted stands for the values of a Secret. It is not valid base64, so that what was read cannot be written back by mistake.
const redacted = "(redacted)"

// shown is an object as callers see it: of a Secret they are told the names of its entries and nothing of the values.
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
