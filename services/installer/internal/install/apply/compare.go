package apply

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
)

// equal says whether applying changes nothing: the object is the same, and so are the fields that are the installer's.
func equal(live, after *unstructured.Unstructured) bool {
	return cluster.OwnedFields(live) == cluster.OwnedFields(after) && reflect.DeepEqual(Plain(live), Plain(after))
}

// Plain is an object without what the API server keeps about it: for comparing, and for people.
func Plain(u *unstructured.Unstructured) map[string]any {
	if u == nil {
		return nil
	}
	out := u.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "generation", "creationTimestamp", "uid"} {
		unstructured.RemoveNestedField(out.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(out.Object, "status")
	return out.Object
}

// yield returns an object without those fields of a conflict that the cluster decides, not the installation: the
// replicas of a workload that a HorizontalPodAutoscaler of the installation scales, and the caBundle and failurePolicy
// of webhooks, which the control plane sets once it serves them. A conflict says that another manager holds the field,
// so that it keeps its value.
func yield(u *unstructured.Unstructured, fields []cluster.ConflictField, scaled bool) *unstructured.Unstructured {
	out := u.DeepCopy()
	webhooks := strings.HasSuffix(u.GetKind(), "WebhookConfiguration")
	for _, f := range fields {
		if scaled && f.Field == ".spec.replicas" {
			unstructured.RemoveNestedField(out.Object, "spec", "replicas")
		}
		rest, ok := strings.CutPrefix(f.Field, `.webhooks[name="`)
		name, field, found := strings.Cut(rest, `"].`)
		if !webhooks || !ok || !found || field != "failurePolicy" && field != "clientConfig.caBundle" {
			continue
		}
		list, _, _ := unstructured.NestedSlice(out.Object, "webhooks")
		for _, item := range list {
			if hook, ok := item.(map[string]any); ok && hook["name"] == name {
				unstructured.RemoveNestedField(hook, strings.Split(field, ".")...)
			}
		}
		out.Object["webhooks"] = list
	}
	return out
}

// Shown are an object before and after, for people. Values of a Secret are replaced by a word that says whether they
// differ.
func Shown(before, after *unstructured.Unstructured) (a, b map[string]any) {
	a, b = Plain(before), Plain(after)
	if after == nil || after.GetKind() != "Secret" {
		return a, b
	}
	for _, field := range []string{"data", "stringData"} {
		old, _ := a[field].(map[string]any)
		fresh, _ := b[field].(map[string]any)
		for key, value := range fresh {
			if was, ok := old[key]; ok && reflect.DeepEqual(was, value) {
				fresh[key] = "***"
				continue
			}
			fresh[key] = "*** (new)"
		}
		for key := range old {
			old[key] = "***"
		}
	}
	return a, b
}
