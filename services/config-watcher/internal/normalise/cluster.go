package normalise

import (
	"cmp"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Services and workloads of remote clusters. As in Istio, Services of one name and namespace are one service in all
// clusters (namespace sameness): the Service of the own cluster, else the oldest, decides about everything but the
// endpoints, the VIPs and the network gateways, which each cluster adds.

// clusterID is the id of a cluster; of the own one for "".
func (m *Mesh) clusterID(cluster string) string { return cmp.Or(cluster, m.cfg.Cluster) }

// setClusters sets what clusters add to a Service, and whether it is local to each cluster. services are the Kubernetes
// Services behind it.
func (m *Mesh) setClusters(svc *configv1.Service, services []*owner) {
	local := isClusterLocal(m.settings.clusterLocal, svc.Hostname)
	if svc.Source.Kind != "Service" {
		svc.ClusterLocal = local
		return
	}
	m.setNetworkGateways(svc, services)
	if len(services) == 1 && services[0].object.Key.Cluster == "" {
		return
	}
	svc.ClusterLocal = local
	for _, o := range services {
		at := &configv1.ClusterAddresses{Cluster: m.clusterID(o.object.Key.Cluster)}
		if !svc.Headless && svc.ExternalName == "" {
			at.Addresses = clusterIPs(o.service)
		}
		svc.ClusterAddresses = append(svc.ClusterAddresses, at)
	}
	slices.SortFunc(svc.ClusterAddresses, func(a, b *configv1.ClusterAddresses) int { return strings.Compare(a.Cluster, b.Cluster) })
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
