package ingress

import (
	"cmp"
	"net/netip"
	"slices"

	mesh "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Addresses are what status.loadBalancer of each Ingress shows: how the gateways are reached from outside. service is
// the Service that MeshConfig.ingressService names in Namespace, nil if there is none: its external name, else its load
// balancer's addresses and its external IPs. Without MeshConfig.ingressService they are the external IPs of the nodes
// on which gateways run, see Runs. The result is sorted and has no duplicates.
func Addresses(settings *mesh.MeshConfig, service *corev1.Service, nodes []*object.Node) []networkingv1.IngressLoadBalancerIngress {
	var all []string
	switch {
	case settings.GetIngressService() == "":
		for _, n := range nodes {
			all = append(all, n.ExternalIPs...)
		}
	case service == nil:
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		all = append(all, service.Spec.ExternalName)
	default:
		for _, in := range service.Status.LoadBalancer.Ingress {
			all = append(all, cmp.Or(in.IP, in.Hostname))
		}
		all = append(all, service.Spec.ExternalIPs...)
	}
	var out []networkingv1.IngressLoadBalancerIngress
	for _, a := range all {
		if _, err := netip.ParseAddr(a); err == nil {
			out = append(out, networkingv1.IngressLoadBalancerIngress{IP: a})
		} else if a != "" {
			out = append(out, networkingv1.IngressLoadBalancerIngress{Hostname: a})
		}
	}
	order := func(a, b networkingv1.IngressLoadBalancerIngress) int {
		return cmp.Or(cmp.Compare(a.Hostname, b.Hostname), cmp.Compare(a.IP, b.IP))
	}
	slices.SortFunc(out, order)
	return slices.CompactFunc(out, func(a, b networkingv1.IngressLoadBalancerIngress) bool { return order(a, b) == 0 })
}

// Runs reports whether a Pod is a gateway that serves Ingresses, and runs.
func Runs(settings *mesh.MeshConfig, o *object.Object) bool {
	p, ok := o.Body.(*object.Pod)
	return ok && o.Key.Namespace == Namespace && !p.Ended && !p.Ending && len(p.Addresses) > 0 &&
		object.HasLabels(o.Labels, Selector(settings))
}
