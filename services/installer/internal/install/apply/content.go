package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/install/wait"
)

// maxExamples bounds the objects that a reason names.
const maxExamples = 3

// loss is what would be lost with an object, beside what goes anyway.
type loss struct {
	// text is for people; empty if nothing would be lost.
	text string
	// others is set if somebody else has made what would be lost, or may have.
	others bool
}

// content says what would be lost with an object.
func (j *judgement) content(ctx context.Context, live *unstructured.Unstructured) (loss, error) {
	switch id := cluster.Of(live); {
	case id.IsNamespace() && !j.Purge:
		return loss{"what else is in it would be lost", true}, nil
	case id.IsNamespace():
		return j.inNamespace(ctx, live.GetName())
	case id.Kind == "PersistentVolumeClaim" && id.Group == "":
		return loss{text: "its data would be lost"}, nil
	case id.IsCRD():
		list, err := j.client.List(ctx, wait.Defines(live), metav1.ListOptions{})
		if err != nil {
			return loss{}, err
		}
		left := slices.DeleteFunc(list, func(u unstructured.Unstructured) bool { return j.going[cluster.Of(&u).Key()] })
		if len(left) > 0 {
			return loss{fmt.Sprintf("objects of its kind would be lost, such as %s; there are %d", cluster.Of(&left[0]), len(left)), true}, nil
		}
		if slices.Contains(gatewayAPI, wait.Defines(live).Group) {
			return loss{text: "other controllers may read its kind"}, nil
		}
	}
	return loss{}, nil
}

// gatewayAPI are the groups whose definitions are a cluster's rather than one controller's.
var gatewayAPI = []string{"gateway.networking.k8s.io", "gateway.networking.x-k8s.io"}

// inNamespace says what others have in a namespace. What cannot be looked at may be there.
func (j *judgement) inNamespace(ctx context.Context, namespace string) (loss, error) {
	kinds, err := j.client.NamespacedKinds()
	if err != nil {
		return loss{}, err
	}
	found, failed := make([][]cluster.ID, len(kinds)), make([]error, len(kinds))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, kind := range kinds {
		if slices.Contains(transient, kind.Kind) {
			continue
		}
		g.Go(func() error {
			kind.Namespace = namespace
			list, err := j.client.List(ctx, kind, metav1.ListOptions{})
			failed[i] = err
			for k := range list {
				if id := cluster.Of(&list[k]); !j.going[id.Key()] && !incidental(&list[k]) {
					found[i] = append(found[i], id)
				}
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
	if ctx.Err() != nil {
		return loss{}, ctx.Err()
	}
	if err := errors.Join(failed...); err != nil {
		return loss{"what else is in it is not known: " + err.Error(), true}, nil //nolint:nilerr // the verdict says it
	}
	all := slices.Concat(found...)
	if len(all) == 0 {
		return loss{}, nil
	}
	var examples []string
	for _, id := range all[:min(len(all), maxExamples)] {
		examples = append(examples, id.String())
	}
	return loss{fmt.Sprintf("objects that no installation has made would be lost, such as %s; there are %d", strings.Join(examples, ", "),
		len(all)), true}, nil
}

// transient are the kinds of objects that Kubernetes and control planes make and need no longer than these run.
var transient = []string{"Event", "Lease", "Endpoints"}

// incidental says whether an object in a namespace is nobody's own: what Kubernetes makes in each namespace, what
// belongs to another object, which counts instead, and what the control plane and this program have made.
func incidental(u *unstructured.Unstructured) bool {
	labels := u.GetLabels()
	switch {
	case len(u.GetOwnerReferences()) > 0, u.GetDeletionTimestamp() != nil:
		return true
	case labels[contract.ManagedByLabel] == contract.ManagedByCA:
		return true
	}
	switch u.GetKind() + "/" + u.GetName() {
	case "ServiceAccount/default", "ConfigMap/kube-root-ca.crt":
		return true
	}
	switch u.GetKind() {
	case "Secret":
		token := u.GetAnnotations()["kubernetes.io/service-account.name"] != ""
		return token || labels[inventory.Label] != ""
	case "Service":
		return labels[tagLabel] != ""
	}
	return false
}
