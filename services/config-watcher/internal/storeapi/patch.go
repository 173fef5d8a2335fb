package storeapi

import (
	"fmt"

	kjson "k8s.io/apimachinery/pkg/util/json"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

func jsonObject(field string, text []byte) (map[string]any, error) {
	if len(text) > manifest.MaxDocumentBytes {
		return nil, object.Problems{{Field: field, Reason: fmt.Sprintf("has %d bytes, more than %d", len(text), manifest.MaxDocumentBytes),
			Remedy: "make it smaller"}}
	}
	var v any
	if err := kjson.Unmarshal(text, &v); err != nil {
		return nil, object.Problems{{Field: field, Reason: "not valid JSON: " + err.Error(), Remedy: "send a JSON object"}}
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, object.Problems{{Field: field, Reason: "no JSON object", Remedy: "send a JSON object"}}
	}
	return m, nil
}

// mergePatch implements RFC 7396 §2.
func mergePatch(target, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	t, ok := target.(map[string]any)
	if !ok {
		t = map[string]any{}
	}
	for k, v := range p {
		if v == nil {
			delete(t, k)
		} else {
			t[k] = mergePatch(t[k], v)
		}
	}
	return t
}
