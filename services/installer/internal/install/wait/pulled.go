package wait

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
)

const (
	// pullPatience is how long the pull of an image may fail: a registry may be away for a moment.
	pullPatience = 20 * time.Second
	// placePatience is how long a Pod may be without a container: a node without room says nothing about the image.
	placePatience = 30 * time.Second
)

// unpulled are the reasons by which a container waits for an image that cannot be had.
var unpulled = []string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable",
	"SignatureValidationFailed", "ImageInspectError"}

// Pulled waits until the images of a Pod are pulled, whatever its containers do then. Its error says why one cannot be;
// it is nil where nothing is learned, because the Pod gets to no node or is deleted.
func Pulled(ctx context.Context, c *cluster.Client, pod cluster.ID, tell func(string)) error {
	var failing time.Time
	for began := time.Now(); ; {
		u, err := c.Get(ctx, pod)
		if fatal(ctx, err) && !over(ctx) {
			return err
		}
		if err == nil && u == nil {
			return nil
		}
		state, t := pulling, trouble{}
		if u != nil {
			state, t = pull(u)
		}
		switch {
		case state == pulled, state == unplaced && time.Since(began) > placePatience:
			return nil
		case state != refused:
			failing = time.Time{}
		case failing.IsZero():
			failing = time.Now()
		}
		if state == refused && (time.Since(failing) > pullPatience || t.reason == "InvalidImageName" || t.reason == "ErrImageNeverPull") ||
			over(ctx) {
			if t.container == "" {
				return errors.New("whether its new image is there is not known: " + pod.String() +
					", which pulls it, has not begun in time; raise --timeout")
			}
			return fmt.Errorf("image %s: %s", t.image(), t.text(context.WithoutCancel(ctx), c))
		}
		tell(pod.String() + ": the image is being pulled")
		if err := sleep(ctx); err != nil {
			return err
		}
	}
}

// pullState is how far the pull of a Pod's images is.
type pullState int

const (
	pulling pullState = iota
	unplaced
	refused
	pulled
)

// pull judges a Pod: one image that cannot be pulled decides.
func pull(pod *unstructured.Unstructured) (pullState, trouble) {
	phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase")
	list, _, _ := unstructured.NestedSlice(pod.Object, "status", "containerStatuses")
	if len(list) == 0 {
		if phase == "Failed" {
			return pulled, trouble{} // the node has refused it, for another reason
		}
		return unplaced, trouble{}
	}
	state, found := pulled, trouble{}
	for _, item := range list {
		s, ok := item.(map[string]any)
		if !ok {
			continue
		}
		waiting, _, _ := unstructured.NestedMap(s, "state", "waiting")
		t := trouble{pod: pod, container: text(s["name"]), reason: text(waiting["reason"]), message: text(waiting["message"])}
		switch {
		case slices.Contains(unpulled, t.reason):
			return refused, t
		case t.reason == "ContainerCreating", t.reason == "PodInitializing":
			state, found = pulling, t
		}
	}
	return state, found
}

// image is that of the trouble's container.
func (t trouble) image() string {
	list, _, _ := unstructured.NestedSlice(t.pod.Object, "spec", "containers")
	for _, item := range list {
		if c, ok := item.(map[string]any); ok && c["name"] == t.container {
			return text(c["image"])
		}
	}
	return "that is new"
}
