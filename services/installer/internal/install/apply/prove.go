package apply

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/wait"
)

// prove pulls the images of a workload that a change brings, before the change ends what runs: that of a Deployment
// whose Pods are recreated, because its volume is for one, of a StatefulSet and of a DaemonSet. It pulls by a Pod that
// only prints its version. Where that cannot be made, for want of a right or by a quota, the change goes on without.
func (r *run) prove(ctx context.Context, ch *Change, tell func(string)) error {
	images := fresh(ch)
	if !r.Wait || len(images) == 0 {
		return nil
	}
	pod := r.puller(ctx, ch, images)
	made, err := r.client.Put(ctx, pod)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case apierrors.IsAlreadyExists(err): // an interrupted run has left it
		made = pod
	case err != nil:
		tell(fmt.Sprintf("%s: its new images are not tried before it is changed: %v", ch.ID, err))
		return nil
	}
	defer func() {
		_ = r.client.Delete(context.WithoutCancel(ctx), cluster.Of(made), "") // else it goes with its owner
	}()
	if err := wait.Pulled(r.until, r.client, cluster.Of(made), tell); err != nil {
		return fmt.Errorf("%s is not changed, and goes on: %w", ch.ID, err)
	}
	return nil
}

// fresh are the containers with images that a change brings to a workload whose old Pods end before the new ones are
// ready.
func fresh(ch *Change) []any {
	if ch.Action != Recreate && (ch.Action != Configure || !endsFirst(ch.After)) {
		return nil
	}
	var old []string
	for _, c := range containers(ch.Live) {
		old = append(old, fmt.Sprint(c["image"]))
	}
	var out []any
	for _, c := range containers(ch.After) {
		image := fmt.Sprint(c["image"])
		if slices.Contains(old, image) {
			continue
		}
		old = append(old, image)
		one := map[string]any{"name": fmt.Sprintf("image-%d", len(out)), "image": image, "args": []any{"--version"}}
		for _, field := range []string{"imagePullPolicy", "securityContext"} {
			if c[field] != nil {
				one[field] = c[field]
			}
		}
		out = append(out, one)
	}
	return out
}

// endsFirst says whether a workload ends old Pods before new ones are ready.
func endsFirst(u *unstructured.Unstructured) bool {
	if cluster.Of(u).Group != "apps" {
		return false
	}
	strategy, _, _ := unstructured.NestedString(u.Object, "spec", "strategy", "type")
	return u.GetKind() == "StatefulSet" || u.GetKind() == "DaemonSet" || u.GetKind() == "Deployment" && strategy == "Recreate"
}

func containers(u *unstructured.Unstructured) (out []map[string]any) {
	for _, field := range []string{"initContainers", "containers"} {
		list, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", field)
		for _, item := range list {
			if c, ok := item.(map[string]any); ok {
				out = append(out, c)
			}
		}
	}
	return out
}

// puller is the Pod that pulls images where the workload's Pods run. It belongs to the workload, and no Service selects
// it.
func (r *run) puller(ctx context.Context, ch *Change, containers []any) *unstructured.Unstructured {
	spec := map[string]any{
		"containers": containers, "restartPolicy": "Never", "terminationGracePeriodSeconds": int64(0), "automountServiceAccountToken": false,
	}
	template, _, _ := unstructured.NestedMap(ch.After.Object, "spec", "template", "spec")
	for _, field := range []string{"imagePullSecrets", "serviceAccountName", "securityContext", "nodeSelector", "tolerations", "affinity"} {
		if template[field] != nil {
			spec[field] = template[field]
		}
	}
	if pods, err := wait.Pods(ctx, r.client, ch.Live); err == nil && ch.Kind != "DaemonSet" {
		for i := range pods {
			if node, _, _ := unstructured.NestedString(pods[i].Object, "spec", "nodeName"); node != "" {
				spec["nodeName"] = node
			}
		}
	}
	sum := sha256.Sum256(fmt.Append(nil, containers))
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "spec": spec}}
	u.SetName(strings.TrimRight(ch.Name[:min(len(ch.Name), maxPullerName)], "-.") + "-image-" + hex.EncodeToString(sum[:4]))
	u.SetNamespace(ch.Namespace)
	u.SetLabels(map[string]string{contract.InjectLabel: "false"})
	u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: ch.Live.GetAPIVersion(), Kind: ch.Live.GetKind(), Name: ch.Name,
		UID: ch.Live.GetUID()}})
	return u
}

// maxPullerName bounds what a Pod's name has of the workload's.
const maxPullerName = 200
