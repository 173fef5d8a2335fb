package normalise

import (
	"cmp"
	"net"
	"slices"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Services and workloads of remote clusters. As in Istio, Services of one name and namespace are one service in all
// clusters (namespace sameness): the Service of the own cluster, else the oldest, decides about everything but the
// endpoints, the VIPs and the network gateways, which each cluster adds.

// clusterID is the id of a cluster; of the own one for "".
func (m *Mesh) clusterID(cluster string) string { return cmp.Or(cluster, m.cfg.Cluster) }

// setClusters sets what clusters add to a Service, and whether it is local to each cluster.
func (m *Mesh) setClusters(h hostKey, svc *configv1.Service) {
	local := isClusterLocal(m.clusterLocal, h.hostname)
	if svc.Source.Kind != "Service" {
		svc.ClusterLocal = local
		return
	}
	services := m.servicesOf(h)
	if g := svc.NetworkGateway; g != nil {
		g.Cluster = m.clusterID(services[0].Key.Cluster)
	}
	if len(services) == 1 && services[0].Key.Cluster == "" {
		return
	}
	svc.ClusterLocal = local
	for i, o := range services {
		body := o.Body.(*corev1.Service)
		at := &configv1.ClusterAddresses{Cluster: m.clusterID(o.Key.Cluster)}
		if !svc.Headless && svc.ExternalName == "" {
			at.Addresses = clusterIPs(body)
		}
		svc.ClusterAddresses = append(svc.ClusterAddresses, at)
		if g := networkGateway(o, body); i > 0 && g != nil {
			g.Cluster = at.Cluster
			svc.MoreNetworkGateways = append(svc.MoreNetworkGateways, g)
		}
	}
	slices.SortFunc(svc.ClusterAddresses, func(a, b *configv1.ClusterAddresses) int { return strings.Compare(a.Cluster, b.Cluster) })
	slices.SortFunc(svc.MoreNetworkGateways, func(a, b *configv1.NetworkGateway) int { return strings.Compare(a.Cluster, b.Cluster) })
}

// clusterLocalHosts reads MeshConfig.serviceSettings: for hosts, which may be wildcards, whether they are local to each
// cluster. As in Istio, hosts of kube-system, the API server and the discovery address are, unless a setting that says
// otherwise names them, or a host that one of these wildcards covers.
func clusterLocalHosts(settings *mesh.MeshConfig, domain string) map[string]bool {
	out := map[string]bool{"*.kube-system.svc." + domain: true, "kubernetes.default.svc." + domain: true}
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

// isClusterLocal finds the setting of a host: its own, or that of the longest wildcard that covers it.
func isClusterLocal(hosts map[string]bool, hostname string) bool {
	if local, ok := hosts[hostname]; ok {
		return local
	}
	longest := ""
	for host := range hosts {
		if strings.HasPrefix(host, "*") && covers(host, hostname) && len(host) > len(longest) {
			longest = host
		}
	}
	return hosts[longest]
}
