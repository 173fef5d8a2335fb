// Package order sorts objects into the order in which they are applied, and writes them: the same bytes for the same
// objects.
package order

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/tree"
)

// ranks has the kinds that others need first. Kinds that are not here come between these and last.
var ranks = func() map[string]int {
	m := map[string]int{}
	for i, kind := range []string{
		"Namespace", "CustomResourceDefinition", "ResourceQuota", "LimitRange", "PriorityClass", "ServiceAccount", "Secret", "ConfigMap",
		"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "NetworkPolicy", "NetworkAttachmentDefinition", "Service", "EndpointSlice",
		"PodDisruptionBudget", "DaemonSet", "StatefulSet", "Deployment", "Job", "CronJob", "HorizontalPodAutoscaler",
	} {
		m[kind] = i
	}
	return m
}()

// last has the kinds that others must not meet before they are ready.
var last = map[string]int{
	"ValidatingAdmissionPolicy": 1, "ValidatingAdmissionPolicyBinding": 2, "MutatingWebhookConfiguration": 3,
	"ValidatingWebhookConfiguration": 4,
}

func rank(o *manifest.Object) int {
	if r, ok := ranks[o.Kind()]; ok {
		return r
	}
	return len(ranks) + last[o.Kind()]
}

// Sort sorts objects: by kind, then by namespace and name, then by group and version.
func Sort(objects []*manifest.Object) {
	slices.SortStableFunc(objects, func(a, b *manifest.Object) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Kind(), b.Kind()), cmp.Compare(a.Namespace(), b.Namespace()),
			cmp.Compare(a.Name(), b.Name()), cmp.Compare(a.APIVersion(), b.APIVersion()))
	})
}

// Text writes objects as one YAML stream.
func Text(objects []*manifest.Object) ([]byte, error) {
	var b bytes.Buffer
	for i, o := range objects {
		if i > 0 {
			b.WriteString("---\n")
		}
		if o.Text != "" {
			b.WriteString(o.Text)
			b.WriteByte('\n')
			continue
		}
		text, err := tree.Text(o.Tree)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.ID(), err)
		}
		b.Write(text)
	}
	return b.Bytes(), nil
}
