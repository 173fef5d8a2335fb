package normalise

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Services and workloads of remote clusters. As in Istio, Services of one name and namespace are one service in all
// clusters (namespace sameness): the Service of the own cluster, else the oldest, decides about everything but the
// endpoints, the VIPs and the network gateways, which each cluster adds.

// kindClusterAway is the kind of the objects by which package remote says that a cluster has been away for so long that
// its endpoints come last. No user writes them.
const kindClusterAway = "ClusterAway"

func clusterAwayKey(cluster string) object.Key {
	return object.Key{Group: kinds.GroupFairlead, Kind: kindClusterAway, Cluster: cluster}
}

// ClusterAway is the change that says whether a remote cluster has been away for so long that its endpoints come last.
func ClusterAway(cluster string, away bool) Change {
	c := Change{Key: clusterAwayKey(cluster)}
	if away {
		c.Object = &object.Object{Key: c.Key}
	}
	return c
}

var clusterAwayKind = &rules[object.Object]{
	is: traits{unreported: true},
	// Every EndpointSet with an endpoint of the cluster says it.
	touch: func(m *Mesh, o *object.Object) {
		for k, e := range m.stored {
			if k.Cluster != o.Key.Cluster {
				continue
			}
			switch v := e.value.(type) {
			case *instance:
				m.touchInstance(v)
			case *owner:
				for _, h := range v.hosts {
					m.dirty.endpoints.Add(h)
				}
			}
		}
	},
}

// isAway reports whether a remote cluster has been away for so long that its endpoints come last.
func (m *Mesh) isAway(cluster string) bool {
	_, away := m.stored[clusterAwayKey(cluster)]
	return cluster != "" && away
}

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
	if g := svc.NetworkGateway; g != nil {
		g.Cluster = m.clusterID(services[0].object.Key.Cluster)
	}
	if len(services) == 1 && services[0].object.Key.Cluster == "" {
		return
	}
	svc.ClusterLocal = local
	for i, o := range services {
		at := &configv1.ClusterAddresses{Cluster: m.clusterID(o.object.Key.Cluster)}
		if !svc.Headless && svc.ExternalName == "" {
			at.Addresses = clusterIPs(o.service)
		}
		svc.ClusterAddresses = append(svc.ClusterAddresses, at)
		if g := networkGateway(o.object, o.service); i > 0 && g != nil {
			g.Cluster = at.Cluster
			svc.MoreNetworkGateways = append(svc.MoreNetworkGateways, g)
		}
	}
	slices.SortFunc(svc.ClusterAddresses, func(a, b *configv1.ClusterAddresses) int { return strings.Compare(a.Cluster, b.Cluster) })
	slices.SortFunc(svc.MoreNetworkGateways, func(a, b *configv1.NetworkGateway) int { return strings.Compare(a.Cluster, b.Cluster) })
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

// Istio's label of the Services of east-west gateways, and the port of a Service without it.
const (
	labelGatewayPort   = "networking.istio.io/gatewayPort"
	networkGatewayPort = 15443
)

// networkGateway is the east-west gateway that a Service with a network label is; nil for other Services and while it
// has no external IP. Host names of load balancers do not count: endpoints need IP addresses.
func networkGateway(o *object.Object, s *corev1.Service) *configv1.NetworkGateway {
	network := o.Labels[labelNetwork]
	if network == "" {
		return nil
	}
	out := &configv1.NetworkGateway{Network: network, Port: networkGatewayPort}
	if port, err := strconv.ParseUint(o.Labels[labelGatewayPort], 10, 16); err == nil && port > 0 {
		out.Port = uint32(port)
	}
	texts := append([]string{}, s.Spec.ExternalIPs...)
	for _, in := range s.Status.LoadBalancer.Ingress {
		texts = append(texts, in.IP)
	}
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" {
			out.Addresses = append(out.Addresses, ip.String())
		}
	}
	if out.Addresses = sortedUnique(out.Addresses); len(out.Addresses) == 0 {
		return nil
	}
	return out
}
