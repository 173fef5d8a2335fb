package inject

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

// podSchema has the merge keys of a Pod's lists. It reads struct tags alone, and only at the first use of each.
var podSchema = func() strategicpatch.PatchMetaFromStruct {
	s, err := strategicpatch.NewPatchMetaFromStruct(corev1.Pod{})
	if err != nil {
		panic(err) // corev1.Pod is a struct
	}
	return s
}()

// parseOverlay reads a rendered template, in YAML.
func parseOverlay(text []byte) (map[string]any, error) {
	js, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	overlay := map[string]any{}
	if err := utiljson.Unmarshal(js, &overlay); err != nil {
		return nil, errors.New("it is not an object")
	}
	return overlay, nil
}

// merge returns the Pod with the overlay merged into it, by the rules of kubectl's strategic merge patch. It changes
// neither.
func merge(pod *corev1.Pod, overlay map[string]any) (*corev1.Pod, error) {
	tree, err := treeOf(pod)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(tree, runtime.DeepCopyJSON(overlay), podSchema)
	if err != nil {
		return nil, err
	}
	text, err := utiljson.Marshal(merged)
	if err != nil {
		return nil, err
	}
	out := &corev1.Pod{}
	if err := utiljson.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("the result is no Pod: %w", err)
	}
	return out, nil
}

func treeOf(v any) (map[string]any, error) {
	text, err := utiljson.Marshal(v)
	if err != nil {
		return nil, err
	}
	tree := map[string]any{}
	return tree, utiljson.Unmarshal(text, &tree)
}

// mergeContainer merges a container of the user's into the Pod's container of that name.
func mergeContainer(pod *corev1.Pod, list string, c corev1.Container) (*corev1.Pod, error) {
	tree, err := treeOf(c)
	if err != nil {
		return nil, err
	}
	return merge(pod, map[string]any{"spec": map[string]any{list: []any{tree}}})
}
