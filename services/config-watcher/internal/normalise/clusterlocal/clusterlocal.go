// Package clusterlocal says which services are local to each cluster, by MeshConfig.serviceSettings, as Istio does.
package clusterlocal

import (
	"net"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"
)

// Hosts says of hosts, which may be wildcards, whether they are local to each cluster.
type Hosts map[string]bool

// Of reads a mesh configuration. As in Istio, hosts of kube-system, the API server and the discovery address are local,
// unless a setting that says otherwise names them, or a host that one of these wildcards covers. domain is the DNS
// suffix of service names.
func Of(settings *mesh.MeshConfig, domain string) Hosts {
	out := Hosts{"*.kube-system.svc." + domain: true, "kubernetes.default.svc." + domain: true}
	if host, _, err := net.SplitHostPort(settings.GetDefaultConfig().GetDiscoveryAddress()); err == nil && strings.Contains(host, ".svc") {
		out[strings.TrimSuffix(host, "."+domain)+"."+domain] = true
	}
	for _, s := range settings.GetServiceSettings() {
		for _, host := range s.GetHosts() {
			for standard := range out {
				if suffix, wildcard := strings.CutPrefix(standard, "*"); !s.GetSettings().GetClusterLocal() && wildcard &&
					strings.HasSuffix(host, suffix) {
					delete(out, standard)
				}
			}
		}
	}
	for _, s := range settings.GetServiceSettings() {
		for _, host := range s.GetHosts() {
			out[strings.ToLower(host)] = s.GetSettings().GetClusterLocal()
		}
	}
	return out
}

// Has finds the setting of a host: its own, or that of the longest wildcard that covers it.
func (x Hosts) Has(hostname string) bool {
	if local, ok := x[hostname]; ok {
		return local
	}
	longest := ""
	for host := range x {
		suffix, wildcard := strings.CutPrefix(host, "*")
		if wildcard && strings.HasSuffix(hostname, suffix) && len(host) > len(longest) {
			longest = host
		}
	}
	return x[longest]
}
