package validate

import (
	"slices"

	typev1beta1 "istio.io/api/type/v1beta1"

	"fairlead.dev/services/config-watcher/internal/kinds"
)

// selector checks the labels of a workload selector; given is false if there is no selector.
func (c *checker) selector(at string, given bool, labels map[string]string) {
	c.workloadLabels(at, labels)
	if given && len(labels) == 0 {
		c.remark(parent(at), "selects all workloads: it has no labels", "name labels, or remove it")
	}
}

// targetKinds are the kinds that a policy may target, by group.
var targetKinds = map[string][]string{
	kinds.GroupGatewayAPI: {"Gateway", "GatewayClass"},
	"networking.istio.io": {"ServiceEntry"},
	"":                    {"Service"},
	"core":                {"Service"},
}

// attached checks what a policy applies to: a selector or targets.
func (c *checker) attached(s *typev1beta1.WorkloadSelector, ref *typev1beta1.PolicyTargetReference,
	refs []*typev1beta1.PolicyTargetReference) {
	c.selector("spec.selector.matchLabels", s != nil, s.GetMatchLabels())
	at := "spec.targetRefs"
	if ref != nil {
		at = "spec.targetRef"
		c.target(at, ref)
	}
	for i, r := range refs {
		c.target(index("spec.targetRefs", i), r)
	}
	if s != nil && (ref != nil || len(refs) > 0) || ref != nil && len(refs) > 0 {
		c.fail(at, nil, "only one of selector, targetRef and targetRefs can be set", "keep one of them")
	}
}

// target checks a policy's target as Istio's webhook does.
func (c *checker) target(at string, ref *typev1beta1.PolicyTargetReference) {
	c.targetName(at, ref)
	if !slices.Contains(targetKinds[ref.Group], ref.Kind) {
		c.fail(at+".kind", ref.Kind, "not a target", "use a Gateway of group gateway.networking.k8s.io, or a selector")
	}
}

// filterTargets checks the targets of an EnvoyFilter. The CRD requires a name; neither the CRD nor istioctl checks the
// kind.
func (c *checker) filterTargets(at string, refs []*typev1beta1.PolicyTargetReference) {
	for at, ref := range each(at, refs) {
		c.targetName(at, ref)
		if ref.Group != kinds.GroupGatewayAPI || ref.Kind != "Gateway" {
			c.warn(at, verdict{"only a Gateway of group gateway.networking.k8s.io has proxies here", "target a Gateway, or use a selector"})
		}
	}
}

func (c *checker) targetName(at string, ref *typev1beta1.PolicyTargetReference) {
	c.failIf(ref.Name == "", at+".name", nil, "missing", "name the target")
	c.failIf(ref.Namespace != "", at+".namespace", ref.Namespace, "targets are of the object's own namespace", "remove it")
}
