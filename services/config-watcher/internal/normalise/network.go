package normalise

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Networks, and the gateways that lead into them: by labels, and by the entry meshNetworks of the mesh configuration.
// As in Istio labels come first.

// networkOf is the network of an instance: its own, else that of its cluster, else the one that meshNetworks has for
// its address.
func (m *Mesh) networkOf(in *instance) string {
	return cmp.Or(in.network, m.clusterNetwork(in.key.Cluster), m.rangeNetwork(in.addresses))
}

// clusterNetwork is the network of every workload of a cluster that names none: a label of the root namespace, as in
// Istio's multi-network installation, else the network that meshNetworks has for the cluster (fromRegistry), the first
// by name of several.
func (m *Mesh) clusterNetwork(cluster string) string {
	if network := m.namespaceLabels(place{kinds.MeshNamespace, cluster})[LabelNetwork]; network != "" {
		return network
	}
	networks := m.settings.networks.GetNetworks()
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		if hasRegistry(networks[name], m.clusterID(cluster)) {
			return name
		}
	}
	return ""
}

func hasRegistry(n *mesh.Network, cluster string) bool {
	return slices.ContainsFunc(n.GetEndpoints(), func(e *mesh.Network_NetworkEndpoints) bool { return e.GetFromRegistry() == cluster })
}

// rangeNetwork is the network that meshNetworks has for an address (fromCidr): that of the largest range, which is what
// Istio's finds first, and the first by name of several with it.
func (m *Mesh) rangeNetwork(addresses []string) string {
	networks := m.settings.networks.GetNetworks()
	if len(networks) == 0 || len(addresses) == 0 {
		return ""
	}
	ip, err := netip.ParseAddr(addresses[0])
	if err != nil {
		return ""
	}
	found, bits := "", 129
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		for _, e := range networks[name].GetEndpoints() {
			if r, err := netip.ParsePrefix(e.GetFromCidr()); err == nil && r.Contains(ip.Unmap()) && r.Bits() < bits {
				found, bits = name, r.Bits()
			}
		}
	}
	return found
}

// Istio's label of the Services of east-west gateways, and the port of a Service without it.
const (
	labelGatewayPort   = "networking.istio.io/gatewayPort"
	networkGatewayPort = 15443
)

// setNetworkGateways sets which networks the Services behind a service lead into. One without an address is left out.
func (m *Mesh) setNetworkGateways(svc *configv1.Service, services []*owner) {
	for i, o := range services {
		for j, g := range m.networkGateways(o, svc.Hostname) {
			g.Cluster = m.clusterID(o.object.Key.Cluster)
			if g.Addresses = m.gatewayAddresses(o.service); len(g.Addresses) == 0 {
				continue
			}
			if i == 0 && j == 0 {
				svc.NetworkGateway = g
			} else {
				svc.MoreNetworkGateways = append(svc.MoreNetworkGateways, g)
			}
		}
	}
	slices.SortFunc(svc.MoreNetworkGateways, compareGateways)
}

func compareGateways(a, b *configv1.NetworkGateway) int {
	return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Network, b.Network), cmp.Compare(a.Port, b.Port))
}

// networkGateways lists the networks that a Service leads into, and the ports, without addresses: the one of its label,
// else those for which meshNetworks names it (registryServiceName) as a Service of a cluster of theirs.
func (m *Mesh) networkGateways(o *owner, hostname string) []*configv1.NetworkGateway {
	if network := o.object.Labels[LabelNetwork]; network != "" {
		out := &configv1.NetworkGateway{Network: network, Port: networkGatewayPort}
		if port, err := strconv.ParseUint(o.object.Labels[labelGatewayPort], 10, 16); err == nil && port > 0 {
			out.Port = uint32(port)
		}
		return []*configv1.NetworkGateway{out}
	}
	networks := m.settings.networks.GetNetworks()
	var out []*configv1.NetworkGateway
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		if !hasRegistry(networks[name], m.clusterID(o.object.Key.Cluster)) {
			continue
		}
		for _, g := range networks[name].GetGateways() {
			if strings.EqualFold(g.GetRegistryServiceName(), hostname) {
				out = append(out, &configv1.NetworkGateway{Network: name, Port: g.GetPort()})
			}
		}
	}
	return out
}

// gatewayAddresses are the addresses at which a Service is reached from outside, sorted: its external IPs, and the IPs
// and host names of its load balancer.
func (m *Mesh) gatewayAddresses(s *corev1.Service) []string {
	texts := append([]string{}, s.Spec.ExternalIPs...)
	for _, in := range s.Status.LoadBalancer.Ingress {
		texts = append(texts, in.IP)
	}
	var out []string
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" {
			out = append(out, ip.String())
		}
	}
	for _, name := range GatewayNames(s) {
		out = append(out, m.addressesOf(name)...)
	}
	return sortedUnique(out)
}

// statedGateways are the gateways of meshNetworks that have an address, which may be a host name.
func (m *Mesh) statedGateways() []*configv1.NetworkGateway {
	var out []*configv1.NetworkGateway
	for name, n := range m.settings.networks.GetNetworks() {
		at := map[uint32]*configv1.NetworkGateway{}
		for _, g := range n.GetGateways() {
			addresses := []string{}
			if ip, err := netip.ParseAddr(g.GetAddress()); err == nil {
				addresses = append(addresses, ip.String())
			} else if g.GetAddress() != "" {
				addresses = m.addressesOf(GatewayName(g.GetAddress()))
			}
			if len(addresses) == 0 {
				continue
			}
			if at[g.GetPort()] == nil {
				at[g.GetPort()] = &configv1.NetworkGateway{Network: name, Port: g.GetPort()}
				out = append(out, at[g.GetPort()])
			}
			at[g.GetPort()].Addresses = sortedUnique(append(at[g.GetPort()].Addresses, addresses...))
		}
	}
	slices.SortFunc(out, compareGateways)
	return out
}

// GatewayNames lists the host names of a Service's load balancer in the form of GatewayName. One beside an IP address
// is another name of that.
func GatewayNames(s *corev1.Service) []string {
	var out []string
	for _, in := range s.Status.LoadBalancer.Ingress {
		if in.IP == "" && in.Hostname != "" {
			out = append(out, GatewayName(in.Hostname))
		}
	}
	return out
}

// GatewayName writes a host name of a gateway in the form that is looked up: in lower case, without a dot at the end.
func GatewayName(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

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
