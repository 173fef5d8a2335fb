package normalise

import (
	"fmt"
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// updateEndpoints takes over an Endpoints object. As Kubernetes mirrors it, each address family of each subset becomes
// an EndpointSlice of the Service with the object's name.
func (m *Mesh) updateEndpoints(k object.Key, o *object.Object) {
	var mirrored []*discoveryv1.EndpointSlice
	if own := (namespacedName{k.Namespace, k.Name, k.Cluster}); o == nil {
		delete(m.mirrored, own)
	} else {
		m.mirrored[own] = o
		mirrored = slicesOf(o.Body.(*object.Endpoints))
	}
	for i := 0; ; i++ {
		// No EndpointSlice can have such a name.
		name := namespacedName{k.Namespace, fmt.Sprintf("%s/%d", k.Name, i), k.Cluster}
		if i >= len(mirrored) {
			if m.slices[name] == nil {
				return
			}
			m.updateSlice(name, nil)
			continue
		}
		slice := *o
		slice.Labels, slice.Body = map[string]string{labelServiceName: k.Name}, mirrored[i]
		m.updateSlice(name, &slice)
	}
}

func slicesOf(e *object.Endpoints) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, subset := range e.Subsets {
		var ports []discoveryv1.EndpointPort
		for _, p := range subset.Ports {
			ports = append(ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol})
		}
		v4 := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: ports}
		v6 := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv6, Ports: ports}
		ready := true
		for _, addresses := range [][]object.EndpointAddress{subset.Addresses, subset.NotReadyAddresses} {
			condition := discoveryv1.EndpointConditions{Ready: new(bool)}
			*condition.Ready = ready
			ready = false
			for _, a := range addresses {
				to := v4
				if ip, err := netip.ParseAddr(a.IP); err == nil && ip.Is6() {
					to = v6
				}
				endpoint := discoveryv1.Endpoint{Addresses: []string{a.IP}, Conditions: condition, NodeName: a.NodeName, TargetRef: a.TargetRef}
				if a.Hostname != "" {
					endpoint.Hostname = &a.Hostname
				}
				to.Endpoints = append(to.Endpoints, endpoint)
			}
		}
		for _, s := range []*discoveryv1.EndpointSlice{v4, v6} {
			if len(s.Endpoints) > 0 {
				out = append(out, s)
			}
		}
	}
	return out
}
