package authz

import (
	typev1beta1 "istio.io/api/type/v1beta1"
)

// GatewayLabel is the label with the name of the Gateway (of the Gateway API) that a workload is a proxy of.
const GatewayLabel = "gateway.networking.k8s.io/gateway-name"

// Workload is what decides which policies apply.
type Workload struct {
	Namespace string
	Labels    map[string]string
	// RootNamespace is the mesh's: its policies apply in all namespaces.
	RootNamespace string
}

// Attached is an AuthorizationPolicy or a RequestAuthentication.
type Attached interface {
	GetSelector() *typev1beta1.WorkloadSelector
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// Targets lists what a policy names as its targets.
func Targets(policy Attached) []*typev1beta1.PolicyTargetReference {
	targets := policy.GetTargetRefs()
	if one := policy.GetTargetRef(); len(targets) == 0 && one != nil {
		targets = []*typev1beta1.PolicyTargetReference{one}
	}
	return targets
}

// Applies reports whether a policy of a namespace applies to the workload. One with targets applies to the proxies of
// the Gateways of its own namespace that it names, and to nothing else: Services and other targets are for waypoints,
// which Fairlead does not have.
func (w Workload) Applies(namespace string, policy Attached) bool {
	if namespace != w.Namespace && namespace != w.RootNamespace {
		return false
	}
	if targets := Targets(policy); len(targets) > 0 {
		return w.targeted(namespace, targets)
	}
	for k, v := range policy.GetSelector().GetMatchLabels() {
		if own, ok := w.Labels[k]; !ok || own != v {
			return false
		}
	}
	return true
}

func (w Workload) targeted(namespace string, targets []*typev1beta1.PolicyTargetReference) bool {
	gateway, ok := w.Labels[GatewayLabel]
	if !ok || namespace != w.Namespace {
		return false
	}
	for _, t := range targets {
		if t.GetGroup() == "gateway.networking.k8s.io" && t.GetKind() == "Gateway" && t.GetName() == gateway &&
			(t.GetNamespace() == "" || t.GetNamespace() == w.Namespace) {
			return true
		}
	}
	return false
}
