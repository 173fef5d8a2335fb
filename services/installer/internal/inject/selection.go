package inject

import (
	"fmt"
	"slices"

	"istio.io/api/annotation"
	"istio.io/api/label"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/proto/fairlead/contract"
)

// Decision says whether a Pod is injected.
type Decision struct {
	Inject bool
	// Reason says why not.
	Reason   string
	Warnings []string
}

// Decide says whether Inject would inject a Pod that reaches the webhook. The webhook's selectors, of namespaces and
// revisions, are the API server's to apply: contract.InjectionLabel says where they are.
func (c *Config) Decide(pod *corev1.Pod) Decision {
	if pod.Spec.HostNetwork {
		return Decision{Reason: "it uses the network of its host"}
	}
	if slices.Contains(contract.SystemNamespaces, pod.Namespace) {
		return Decision{Reason: fmt.Sprintf("no Pod of the namespace %s is injected", pod.Namespace)}
	}
	kind, name, value := "annotation", annotation.SidecarInject.Name, pod.Annotations[annotation.SidecarInject.Name]
	if v, ok := pod.Labels[label.SidecarInject.Name]; ok {
		kind, name, value = "label", label.SidecarInject.Name, v
	}
	var warnings []string
	switch value {
	case "true":
		return Decision{Inject: true}
	case "false":
		return Decision{Reason: fmt.Sprintf("its %s %s is false", kind, name)}
	case "":
	default:
		warnings = append(warnings, fmt.Sprintf("Pod %s: the %s %s is %q, which has no effect; say true or false", Name(pod), kind, name, value))
	}
	set := labels.Set(pod.Labels)
	if slices.ContainsFunc(c.never, func(s labels.Selector) bool { return s.Matches(set) }) {
		return Decision{Reason: "its labels match neverInjectSelector of the injection configuration", Warnings: warnings}
	}
	if slices.ContainsFunc(c.always, func(s labels.Selector) bool { return s.Matches(set) }) || c.policy == policyEnabled {
		return Decision{Inject: true, Warnings: warnings}
	}
	return Decision{
		Reason: fmt.Sprintf("the policy of the injection configuration is disabled, and neither the label %s nor alwaysInjectSelector asks "+
			"for it", label.SidecarInject.Name),
		Warnings: warnings,
	}
}
