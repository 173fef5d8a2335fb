package check

import (
	"maps"
	"slices"
	"strings"

	typev1beta1 "istio.io/api/type/v1beta1"

	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

// Selector checks the labels of a workload selector; given is false if there is no selector.
func (c *Checker) Selector(at string, given bool, labels map[string]string) {
	c.WorkloadLabels(at, labels)
	if given && len(labels) == 0 {
		c.Remark(decode.Parent(at), "selects all workloads: it has no labels", "name labels, or remove it")
	}
}

// WorkloadLabels checks the labels of a selector. It refuses wildcards, which Istio compares as text. It accepts, as
// Istio does, a label that no workload can have.
func (c *Checker) WorkloadLabels(path string, m map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch {
		case k == "":
			c.Fail(path, nil, "label name is empty", "name a label")
		case strings.Contains(k, "*") || strings.Contains(m[k], "*"):
			c.Fail(manifest.Field(path, k), m[k], "wildcards are not supported in selectors", "write the label in full")
		case !LabelKey(k) || !LabelValue(m[k]):
			c.Remark(manifest.Field(path, k), "selects nothing: no workload can have this label", "use at most 63 letters, digits, '-', '_' and '.'")
		}
	}
}

// targetKinds are the kinds that a policy may target, by group.
var targetKinds = map[string][]string{
	kinds.GroupGatewayAPI: {"Gateway", "GatewayClass"},
	kinds.GroupNetworking: {"ServiceEntry"},
	"":                    {"Service"},
	"core":                {"Service"},
}

// Attached checks what a policy applies to: a selector or targets.
func (c *Checker) Attached(s *typev1beta1.WorkloadSelector, ref *typev1beta1.PolicyTargetReference,
	refs []*typev1beta1.PolicyTargetReference) {
	c.Selector("spec.selector.matchLabels", s != nil, s.GetMatchLabels())
	at := "spec.targetRefs"
	if ref != nil {
		at = "spec.targetRef"
		c.target(at, ref)
	}
	for i, r := range refs {
		c.target(manifest.Index("spec.targetRefs", i), r)
	}
	if s != nil && (ref != nil || len(refs) > 0) || ref != nil && len(refs) > 0 {
		c.Fail(at, nil, "only one of selector, targetRef and targetRefs can be set", "keep one of them")
	}
}

// target checks a policy's target as Istio's webhook does.
func (c *Checker) target(at string, ref *typev1beta1.PolicyTargetReference) {
	c.TargetName(at, ref)
	if !slices.Contains(targetKinds[ref.Group], ref.Kind) {
		c.Fail(at+".kind", ref.Kind, "not a target", "use a Gateway of group gateway.networking.k8s.io, or a selector")
	}
}

// TargetName checks how a target is named.
func (c *Checker) TargetName(at string, ref *typev1beta1.PolicyTargetReference) {
	c.FailIf(ref.Name == "", at+".name", nil, "missing", "name the target")
	c.FailIf(ref.Namespace != "", at+".namespace", ref.Namespace, "targets are of the object's own namespace", "remove it")
}
