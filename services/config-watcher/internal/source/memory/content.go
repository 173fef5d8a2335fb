package memory

import (
	"reflect"
	"slices"
)

// serverFields are the fields of metadata that the store sets, whatever the user has written.
var serverFields = []string{"resourceVersion", "generation", "creationTimestamp", "uid", "managedFields", "selfLink"}

// sameContent compares everything that the user decides.
func sameContent(a, b map[string]any) bool {
	return reflect.DeepEqual(userPart(a, true), userPart(b, true))
}

func sameSpec(a, b map[string]any) bool {
	return reflect.DeepEqual(userPart(a, false), userPart(b, false))
}

func userPart(tree map[string]any, all bool) map[string]any {
	out := make(map[string]any, len(tree))
	for k, v := range tree {
		switch k {
		case "metadata":
			if all {
				out[k] = withoutServerFields(v)
			}
		case "status":
			if all {
				out[k] = v
			}
		default:
			out[k] = v
		}
	}
	return out
}

func withoutServerFields(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	out := make(map[string]any, len(m))
	for k, v := range m {
		if !slices.Contains(serverFields, k) && v != nil {
			out[k] = v
		}
	}
	return out
}
