package gatewaydeploy

import (
	"maps"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A Target is what labels and annotations are for: what they mean depends on it.
type Target int

// Targets of labels and annotations.
const (
	// Object is any object but a Pod.
	Object Target = iota
	// Pod is the template of a Gateway's Pods.
	Pod
	// Account is a Gateway's service account.
	Account
)

// meshDomains are prefixes of labels and annotations by which a mesh treats a Pod. Those of the Gateway API and of
// Istio's controller say whose an object is, so no object gets them.
var (
	ownDomains  = []string{"gateway.networking.k8s.io", "gateway.istio.io"}
	meshDomains = []string{"istio.io", "fairlead.dev"}
	// meshKeys are allowed nevertheless: they say where a Pod is.
	meshKeys = []string{"topology.istio.io/network", "topology.istio.io/subzone"}
	// nodeDomains are those by which the kubelet, container runtimes and network plugins give a Pod rights, devices and
	// networks; kubernetes.io and k8s.io have some, such as AppArmor's profile.
	nodeDomains = []string{"kubernetes.io", "k8s.io", "cncf.io", "projectcalico.org", "cilium.io", "ovn.org", "nri.io", "containerd.io"}
	// nodePrefixes are such names without a domain.
	nodePrefixes = []string{"io.katacontainers", "io.kubernetes.", "io.containerd.", "run.oci.", "dev.gvisor."}
	// plainDomains are below those, and change nothing of a Pod.
	plainDomains = []string{"app.kubernetes.io", "cluster-autoscaler.kubernetes.io"}
	// cloudDomains give a service account or its Pods rights in a cloud.
	cloudDomains = []string{"eks.amazonaws.com", "iam.gke.io", "azure.workload.identity", "iam.amazonaws.com"}
)

// Reserved says why a label or annotation is none that users may set on a target; "" if they may.
func Reserved(t Target, key string) string {
	domain, _, found := strings.Cut(key, "/")
	if !found {
		domain = ""
	}
	below := func(domains []string) bool {
		return slices.ContainsFunc(domains, func(d string) bool { return domain == d || strings.HasSuffix(domain, "."+d) })
	}
	switch {
	case below(ownDomains):
		return "it says whose an object is"
	case below(cloudDomains):
		return "it gives rights in a cloud"
	case t != Pod:
		return ""
	case key == "app.kubernetes.io/part-of":
		return "it says whose a Pod is"
	case slices.Contains(meshKeys, key) || slices.Contains(plainDomains, domain):
		return ""
	case below(meshDomains):
		return "it says how the mesh treats a Pod"
	case below(nodeDomains), slices.ContainsFunc(nodePrefixes, func(p string) bool { return strings.HasPrefix(key, p) }):
		return "it says what a Pod may do on its node"
	}
	return ""
}

// InfrastructureLabels are the labels that a Gateway's objects get from its spec.infrastructure, or without such from
// its own, but those that are Reserved for a target.
func InfrastructureLabels(gw *gatewayv1.Gateway, t Target) map[string]string {
	if i := gw.Spec.Infrastructure; i != nil && i.Labels != nil {
		return unreserved(t, i.Labels)
	}
	return unreserved(t, gw.Labels)
}

// InfrastructureAnnotations are the same of annotations. What kubectl notes is left out.
func InfrastructureAnnotations(gw *gatewayv1.Gateway, t Target) map[string]string {
	if i := gw.Spec.Infrastructure; i != nil && i.Annotations != nil {
		return unreserved(t, i.Annotations)
	}
	out := unreserved(t, gw.Annotations)
	delete(out, "kubectl.kubernetes.io/last-applied-configuration")
	return out
}

func unreserved[K, V ~string](t Target, from map[K]V) map[string]string {
	out := map[string]string{}
	for key, value := range from {
		if Reserved(t, string(key)) == "" {
			out[string(key)] = string(value)
		}
	}
	return out
}

// ReservedInfrastructure lists the keys of spec.infrastructure that some object of the Gateway does not get.
func ReservedInfrastructure(gw *gatewayv1.Gateway) []string {
	i := gw.Spec.Infrastructure
	if i == nil {
		return nil
	}
	keys := map[string]bool{}
	for key := range i.Labels {
		keys[string(key)] = true
	}
	for key := range i.Annotations {
		keys[string(key)] = true
	}
	maps.DeleteFunc(keys, func(key string, _ bool) bool { return Reserved(Pod, key) == "" && Reserved(Account, key) == "" })
	return slices.Sorted(maps.Keys(keys))
}
