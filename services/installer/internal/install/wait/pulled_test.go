package wait

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestPullsAreJudged(t *testing.T) {
	status := func(states ...map[string]any) map[string]any {
		var list []any
		for _, s := range states {
			list = append(list, map[string]any{"name": "image-0", "state": s})
		}
		return map[string]any{"containerStatuses": list}
	}
	waits := func(reason string) map[string]any { return map[string]any{"waiting": map[string]any{"reason": reason}} }
	ended := map[string]any{"terminated": map[string]any{"exitCode": int64(1)}}
	for name, tc := range map[string]struct {
		status map[string]any
		want   pullState
	}{
		"a Pod that is on no node":                {map[string]any{"phase": "Pending"}, unplaced},
		"a Pod that its node refuses":             {map[string]any{"phase": "Failed", "reason": "OutOfcpu"}, pulled},
		"a container that is being made":          {status(waits("ContainerCreating")), pulling},
		"a container that has ended":              {status(ended), pulled},
		"a container that cannot be started":      {status(waits("CreateContainerError")), pulled},
		"an image that is not there":              {status(waits("ErrImagePull")), refused},
		"an image that is not there, told again":  {status(waits("ImagePullBackOff")), refused},
		"one of two images that is not there":     {status(ended, waits("ErrImagePull")), refused},
		"one of two images that is still pulled":  {status(ended, waits("ContainerCreating")), pulling},
		"a name that is none, and one that waits": {status(waits("ContainerCreating"), waits("InvalidImageName")), refused},
	} {
		if got, _ := pull(&unstructured.Unstructured{Object: map[string]any{"status": tc.status}}); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
