// Package networks says which networks workloads are in and which Services lead into networks, by labels and by the
// entry meshNetworks of the mesh configuration, as Istio does.
package networks

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
)

// Label is that of the network of a Pod, of a namespace (that of its workloads), and of a Service that leads into it.
const Label = "topology.istio.io/network"

// Istio's label of the Services of east-west gateways, and the port of a Service without it.
const (
	labelGatewayPort = "networking.istio.io/gatewayPort"
	gatewayPort      = 15443
)

// OfCluster is the network that meshNetworks has for a cluster (fromRegistry), the first by name of several; "" if
// there is none.
func OfCluster(all *mesh.MeshNetworks, cluster string) string {
	for _, name := range slices.Sorted(maps.Keys(all.GetNetworks())) {
		if hasRegistry(all.GetNetworks()[name], cluster) {
			return name
		}
	}
	return ""
}

func hasRegistry(n *mesh.Network, cluster string) bool {
	return slices.ContainsFunc(n.GetEndpoints(), func(e *mesh.Network_NetworkEndpoints) bool { return e.GetFromRegistry() == cluster })
}

// OfAddresses is the network that meshNetworks has for the first of a workload's addresses (fromCidr): that of the
// largest range, which is what Istio's finds first, and the first by name of several with it; "" if there is none.
func OfAddresses(all *mesh.MeshNetworks, addresses []string) string {
	if len(all.GetNetworks()) == 0 || len(addresses) == 0 {
		return ""
	}
	ip, err := netip.ParseAddr(addresses[0])
	if err != nil {
		return ""
	}
	found, bits := "", 129
	for _, name := range slices.Sorted(maps.Keys(all.GetNetworks())) {
		for _, e := range all.GetNetworks()[name].GetEndpoints() {
			if r, err := netip.ParsePrefix(e.GetFromCidr()); err == nil && r.Contains(ip.Unmap()) && r.Bits() < bits {
				found, bits = name, r.Bits()
			}
		}
	}
	return found
}

// Gateways lists the networks that a Service of a cluster leads into, and the ports, without addresses: the one of its
// label, else those for which meshNetworks names its host (registryServiceName) as one of a cluster of theirs.
func Gateways(all *mesh.MeshNetworks, cluster, host string, labels map[string]string) []*configv1.NetworkGateway {
	if network := labels[Label]; network != "" {
		out := &configv1.NetworkGateway{Network: network, Port: gatewayPort, Cluster: cluster}
		if port, err := strconv.ParseUint(labels[labelGatewayPort], 10, 16); err == nil && port > 0 {
			out.Port = uint32(port)
		}
		return []*configv1.NetworkGateway{out}
	}
	var out []*configv1.NetworkGateway
	for _, name := range slices.Sorted(maps.Keys(all.GetNetworks())) {
		if !hasRegistry(all.GetNetworks()[name], cluster) {
			continue
		}
		for _, g := range all.GetNetworks()[name].GetGateways() {
			if strings.EqualFold(g.GetRegistryServiceName(), host) {
				out = append(out, &configv1.NetworkGateway{Network: name, Port: g.GetPort(), Cluster: cluster})
			}
		}
	}
	return out
}

// Compare orders gateways by cluster, network and port.
func Compare(a, b *configv1.NetworkGateway) int {
	return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Network, b.Network), cmp.Compare(a.Port, b.Port))
}

// Addresses are those at which a Service is reached from outside, sorted: its external IPs, the IPs of its load
// balancer, and what lookup knows of that's host names.
func Addresses(s *corev1.Service, lookup func(name string) []string) []string {
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
	for _, name := range Names(s) {
		out = append(out, lookup(name)...)
	}
	return unique(out)
}

// Stated are the gateways of meshNetworks that have an address, which may be a host name that lookup knows.
func Stated(all *mesh.MeshNetworks, lookup func(name string) []string) []*configv1.NetworkGateway {
	var out []*configv1.NetworkGateway
	for name, n := range all.GetNetworks() {
		at := map[uint32]*configv1.NetworkGateway{}
		for _, g := range n.GetGateways() {
			var addresses []string
			if ip, err := netip.ParseAddr(g.GetAddress()); err == nil {
				addresses = []string{ip.String()}
			} else if g.GetAddress() != "" {
				addresses = lookup(Name(g.GetAddress()))
			}
			if len(addresses) == 0 {
				continue
			}
			if at[g.GetPort()] == nil {
				at[g.GetPort()] = &configv1.NetworkGateway{Network: name, Port: g.GetPort()}
				out = append(out, at[g.GetPort()])
			}
			at[g.GetPort()].Addresses = unique(append(at[g.GetPort()].Addresses, addresses...))
		}
	}
	slices.SortFunc(out, Compare)
	return out
}

func unique(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// Names lists the host names of a Service's load balancer in the form of Name. One beside an IP address is another name
// of that.
func Names(s *corev1.Service) []string {
	var out []string
	for _, in := range s.Status.LoadBalancer.Ingress {
		if in.IP == "" && in.Hostname != "" {
			out = append(out, Name(in.Hostname))
		}
	}
	return out
}

// Name writes a host name of a gateway in the form that is looked up: in lower case, without a dot at the end.
func Name(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }
