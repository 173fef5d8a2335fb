package inject

import (
	"encoding/json"
	"fmt"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
)

// Patch returns the JSON Patch (RFC 6902) that makes after from before, the Pod's JSON as the API server sent it.
// Members of before that corev1.Pod does not know are kept. Without a difference it is `[]`.
func Patch(before []byte, after *corev1.Pod) ([]byte, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(before, &pod); err != nil {
		return nil, fmt.Errorf("the Pod is no JSON of a Pod: %w; send a Pod of version v1", err)
	}
	from, err := json.Marshal(&pod)
	if err != nil {
		return nil, err
	}
	to, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	operations, err := jsonpatch.CreatePatch(from, to)
	if err != nil {
		return nil, err
	}
	return json.Marshal(operations)
}
