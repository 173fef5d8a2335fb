package tag

import (
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/proto/fairlead/contract"
)

// selector says where one webhook of a tag injects.
type selector struct {
	prefix           string
	namespaces, pods *metav1.LabelSelector
}

func (s selector) name() string { return s.prefix + "sidecar-injector.istio.io" }

// selectors are Istio's, of revisions and tags alike: a namespace's label goes before a Pod's, istio-injection before
// istio.io/rev, and a Pod can refuse. The chart of the injector has the same.
func selectors(revision string, auto bool) []selector {
	all := []selector{
		{"rev.namespace.", where(in(contract.RevisionLabel, revision), absent(contract.InjectionLabel)),
			where(notIn(contract.InjectLabel, "false"))},
		{"rev.object.", where(absent(contract.RevisionLabel), absent(contract.InjectionLabel)),
			where(notIn(contract.InjectLabel, "false"), in(contract.RevisionLabel, revision))},
	}
	if revision != Default {
		return all
	}
	all = append(all,
		selector{"namespace.", where(in(contract.InjectionLabel, "enabled")), where(notIn(contract.InjectLabel, "false"))},
		selector{"object.", where(absent(contract.InjectionLabel), absent(contract.RevisionLabel)),
			where(in(contract.InjectLabel, "true"), absent(contract.RevisionLabel))},
	)
	if auto {
		system := notIn("kubernetes.io/metadata.name", contract.SystemNamespaces...)
		all = append(all, selector{"auto.", where(absent(contract.InjectionLabel), absent(contract.RevisionLabel), system),
			where(absent(contract.InjectLabel), absent(contract.RevisionLabel))})
	}
	return all
}

func where(all ...metav1.LabelSelectorRequirement) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: all}
}

func in(key string, values ...string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: values}
}

func notIn(key string, values ...string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: values}
}

func absent(key string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpDoesNotExist}
}

// Deactivate silences the injector of the revision "default", in the object itself, because two webhooks would inject
// the same Pods. It is false if there is nothing to do.
func Deactivate(injector *admissionv1.MutatingWebhookConfiguration) (changed bool) {
	for i := range injector.Webhooks {
		w := &injector.Webhooks[i]
		if !silent(w) {
			w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{deactivated: never}}
			w.ObjectSelector = w.NamespaceSelector.DeepCopy()
			changed = true
		}
	}
	return changed
}

// Restore undoes Deactivate, in the object itself. A webhook that this package cannot know the selectors of stays
// silent, and is named.
func Restore(injector *admissionv1.MutatingWebhookConfiguration) (changed bool, unknown []string) {
	for i := range injector.Webhooks {
		w := &injector.Webhooks[i]
		if !silent(w) {
			continue
		}
		found := false
		for _, s := range selectors(Default, true) {
			if s.name() == w.Name {
				w.NamespaceSelector, w.ObjectSelector = s.namespaces, s.pods
				changed, found = true, true
			}
		}
		if !found {
			unknown = append(unknown, strings.TrimSpace(w.Name))
		}
	}
	return changed, unknown
}

func silent(w *admissionv1.MutatingWebhook) bool {
	return w.NamespaceSelector != nil && w.NamespaceSelector.MatchLabels[deactivated] == never
}
