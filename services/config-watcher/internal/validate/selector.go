package validate

import (
	"slices"

	typev1beta1 "istio.io/api/type/v1beta1"
)

// selector checks the labels of a selector of workloads; given is false where there is no selector.
func (c *checker) selector(at string, given bool, labels map[string]string) {
	c.workloadLabels(at, labels)
	if given && len(labels) == 0 {
		c.remark(parent(at), "selects all workloads: it has no labels", "name labels, or remove it")
	}
}

// targetKinds are what a policy may be attached to, by group.
var targetKinds = map[string][]string{
	"gateway.networking.k8s.io": {"Gateway", "GatewayClass"},
	"networking.istio.io":       {"ServiceEntry"},
	"":                          {"Service"},
	"core":                      {"Service"},
}

// targets checks what a policy is attached to. The rules are those of the CRDs, which istioctl does not know.
func (c *checker) targets(at string, refs []*typev1beta1.PolicyTargetReference) {
	for i, ref := range refs {
		at := index(at, i)
		if ref.Name == "" {
			c.fail(at+".name", nil, "missing", "name the "+ref.Kind)
		}
		if ref.Namespace != "" {
			c.fail(at+".namespace", ref.Namespace, "targets are of the object's own namespace", "remove it")
		}
		switch {
		case ref.Kind == "":
			c.fail(at+".kind", nil, "missing", "use kind Gateway of group gateway.networking.k8s.io")
		case !slices.Contains(targetKinds[ref.Group], ref.Kind) || ref.Kind != "Gateway":
			c.warn(at, verdict{"only a Gateway of group gateway.networking.k8s.io has proxies here", "target a Gateway, or use a selector"})
		}
	}
}
