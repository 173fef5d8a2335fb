// Package balancer gives Services of type LoadBalancer their addresses, as a cloud would, from a range of the node's
// network. kube-proxy answers on them, on the node and for its Pods; nobody outside of the cluster reaches them.
package balancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// refusal says why a Service has no address.
type refusal struct {
	service *corev1.Service
	why     string
}

// assign returns what is to change: for each Service whose address is not the one that it has in its status, a copy
// with the right status; and the Services that ask by spec.loadBalancerIP for what they cannot have, which get a status
// without an address. A Service keeps its address while it asks for no other; of two that want the same one, the older
// has it.
func assign(pool netip.Prefix, services []*corev1.Service) (changed []*corev1.Service, refused []refusal) {
	services = slices.DeleteFunc(slices.Clone(services), func(s *corev1.Service) bool {
		return s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.Spec.LoadBalancerClass != nil || s.DeletionTimestamp != nil
	})
	slices.SortFunc(services, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	given := map[netip.Addr]*corev1.Service{}
	rest := services[:0:0]
	// Who asks for an address comes before who has it by chance, and who has one before who needs any.
	for _, s := range services {
		switch why := wish(pool, given, s); {
		case s.Spec.LoadBalancerIP == "":
			rest = append(rest, s)
		case why != "":
			refused = append(refused, refusal{s, why})
			changed = appendChanged(changed, s, netip.Addr{})
		default:
			ip, _ := netip.ParseAddr(s.Spec.LoadBalancerIP) // wish has parsed it
			given[ip] = s
			changed = appendChanged(changed, s, ip)
		}
	}
	var without []*corev1.Service
	for _, s := range rest {
		if ip := has(s); pool.Contains(ip) && given[ip] == nil {
			given[ip] = s
			changed = appendChanged(changed, s, ip)
		} else {
			without = append(without, s)
		}
	}
	next := pool.Addr()
	for _, s := range without {
		for next = next.Next(); pool.Contains(next) && given[next] != nil; {
			next = next.Next()
		}
		if !pool.Contains(next) {
			refused = append(refused, refusal{s, fmt.Sprintf("all addresses of %s are given", pool)})
			changed = appendChanged(changed, s, netip.Addr{})
			continue
		}
		given[next] = s
		changed = appendChanged(changed, s, next)
	}
	return changed, refused
}

// wish says why a Service cannot have the address that it asks for; "" if it can, or asks for none.
func wish(pool netip.Prefix, given map[netip.Addr]*corev1.Service, s *corev1.Service) string {
	asked := s.Spec.LoadBalancerIP
	if asked == "" {
		return ""
	}
	ip, err := netip.ParseAddr(asked)
	if err != nil || !pool.Contains(ip) {
		return fmt.Sprintf("spec.loadBalancerIP %q is no address of %s, the range of this cluster's load balancers", asked, pool)
	}
	if other := given[ip]; other != nil {
		return fmt.Sprintf("spec.loadBalancerIP %s is the address of Service %s/%s", asked, other.Namespace, other.Name)
	}
	return ""
}

// has is the address in a Service's status; not valid if there is none.
func has(s *corev1.Service) netip.Addr {
	if list := s.Status.LoadBalancer.Ingress; len(list) == 1 {
		if ip, err := netip.ParseAddr(list[0].IP); err == nil {
			return ip
		}
	}
	return netip.Addr{}
}

// appendChanged appends a copy of a Service with an address, or without one, unless it is so already.
func appendChanged(list []*corev1.Service, s *corev1.Service, ip netip.Addr) []*corev1.Service {
	if has(s) == ip && (ip.IsValid() || len(s.Status.LoadBalancer.Ingress) == 0) {
		return list
	}
	s = s.DeepCopy()
	s.Status.LoadBalancer.Ingress = nil
	if ip.IsValid() {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip.String()}}
	}
	return append(list, s)
}
