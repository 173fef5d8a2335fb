package object

import corev1 "k8s.io/api/core/v1"

// Pod is what the mesh reads of a Pod beside its metadata, about a hundredth of the object.
type Pod struct {
	// Ended is true after the containers have run to their end, Ending after the Pod's deletion has been requested.
	Ended, Ending bool
	Ready         bool
	// Addresses has no duplicates; the first is the primary one.
	Addresses           []string
	ServiceAccount      string
	Node                string
	Hostname, Subdomain string
	// Ports maps the names of container ports to their numbers.
	Ports map[string]uint32
}

// PodOf reads a Pod. The result keeps no part of p in memory.
func PodOf(p *corev1.Pod) *Pod {
	out := &Pod{
		Ended:  p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		Ending: p.DeletionTimestamp != nil, ServiceAccount: p.Spec.ServiceAccountName, Node: p.Spec.NodeName,
		Hostname: p.Spec.Hostname, Subdomain: p.Spec.Subdomain,
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			out.Ready = c.Status == corev1.ConditionTrue
		}
	}
	if p.Status.PodIP != "" {
		out.Addresses = append(out.Addresses, p.Status.PodIP)
	}
	for _, ip := range p.Status.PodIPs {
		if ip.IP != p.Status.PodIP {
			out.Addresses = append(out.Addresses, ip.IP)
		}
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			for _, port := range c.Ports {
				if port.Name == "" {
					continue
				}
				if out.Ports == nil {
					out.Ports = map[string]uint32{}
				}
				if _, taken := out.Ports[port.Name]; !taken {
					out.Ports[port.Name] = uint32(port.ContainerPort)
				}
			}
		}
	}
	return out
}
