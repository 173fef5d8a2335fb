package normalise

import (
	"cmp"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise/networks"
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
	local := m.settings.clusterLocal.Has(svc.Hostname)
	if svc.Source.Kind != "Service" {
		svc.ClusterLocal = local
		return
	}
	set := services[0].object.ClusterSet
	if set != nil && svc.Hostname == set.Host {
		svc.ClusterLocal = local
		for _, v := range set.VIPs {
			svc.ClusterAddresses = append(svc.ClusterAddresses, &configv1.ClusterAddresses{Cluster: v.Cluster, Addresses: v.IPs})
		}
		return
	}
	m.setNetworkGateways(svc, services)
	if len(services) == 1 && services[0].object.Key.Cluster == "" && set == nil {
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

// isClusterOnly reports whether clients in other clusters do not see the endpoints that a cluster has for a host: its
// Service is not exported, or the host is strictly the cluster's. services are those behind the host.
func isClusterOnly(hostname, cluster string, services []*owner) bool {
	return slices.ContainsFunc(services, func(o *owner) bool {
		set := o.object.ClusterSet
		return o.object.Key.Cluster == cluster && set != nil && (!set.Exported || set.Strict && hostname != set.Host)
	})
}

// networkOf is the network of an instance: its own, else that of its cluster, else the one that meshNetworks has for
// its address.
func (m *Mesh) networkOf(in *instance) string {
	return cmp.Or(in.network, m.clusterNetwork(in.key.Cluster), networks.OfAddresses(m.settings.networks, in.addresses))
}

// clusterNetwork is the network of every workload of a cluster that names none: a label of the root namespace, as in
// Istio's multi-network installation, else the one that meshNetworks has for the cluster.
func (m *Mesh) clusterNetwork(cluster string) string {
	return cmp.Or(m.namespaceLabels(place{kinds.MeshNamespace, cluster})[networks.Label],
		networks.OfCluster(m.settings.networks, m.clusterID(cluster)))
}

// setNetworkGateways sets which networks the Services behind a service lead into. One without an address is left out.
func (m *Mesh) setNetworkGateways(svc *configv1.Service, services []*owner) {
	for i, o := range services {
		for j, g := range networks.Gateways(m.settings.networks, m.clusterID(o.object.Key.Cluster), svc.Hostname, o.object.Labels) {
			if g.Addresses = networks.Addresses(o.service, m.addressesOf); len(g.Addresses) == 0 {
				continue
			}
			if i == 0 && j == 0 {
				svc.NetworkGateway = g
			} else {
				svc.MoreNetworkGateways = append(svc.MoreNetworkGateways, g)
			}
		}
	}
	slices.SortFunc(svc.MoreNetworkGateways, networks.Compare)
}

// KindGatewayName is the kind of the objects, in group fairlead.dev, by which package gatewayname says what the host
// names of gateways resolve to. Their body is an object.GatewayName. No user writes them.
const KindGatewayName = "GatewayName"

// GatewayNameKey is the key of the object of a host name.
func GatewayNameKey(host string) object.Key {
	return object.Key{Group: kinds.GroupFairlead, Kind: KindGatewayName, Name: host}
}

var gatewayNameKind = &rules[object.GatewayName]{
	is:     traits{unreported: true, meshWide: true},
	decode: func(_ *Mesh, o *object.Object) (*object.GatewayName, error) { return o.Body.(*object.GatewayName), nil },
	touch: func(m *Mesh, n *object.GatewayName) {
		m.dirty.mesh = true
		for o := range m.gatewayNames[n.Name].All {
			for _, h := range o.hosts {
				m.dirty.services.Add(h)
			}
		}
	},
}

// addressesOf are the addresses that a host name of a gateway resolves to; none while it has not been looked up.
func (m *Mesh) addressesOf(name string) []string {
	found, _ := m.stored[GatewayNameKey(name)].value.(*object.GatewayName)
	if found == nil {
		return nil
	}
	return found.Addresses
}
