// Package mirror makes EndpointSlices of Endpoints objects, as Kubernetes mirrors them.
package mirror

import (
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// SlicesOf returns an EndpointSlice for each address family of each subset of an Endpoints object.
func SlicesOf(e *object.Endpoints) []*discoveryv1.EndpointSlice {
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
