package mesh

import (
	"cmp"
	"slices"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// NetworkGateway is an address and a port through which a network is entered.
type NetworkGateway struct {
	Address string
	Port    uint32
}

// networkGateways lists the gateways that a service is, in all clusters.
func networkGateways(svc *configv1.Service) []*configv1.NetworkGateway {
	return lists.Filter(append([]*configv1.NetworkGateway{svc.GetNetworkGateway()}, svc.GetMoreNetworkGateways()...),
		func(g *configv1.NetworkGateway) bool { return g.GetNetwork() != "" })
}

// NetworkGateways lists where a network is entered, sorted; empty if nothing leads into it. Gateways in the cluster
// come before others: if there are any, only they are listed.
func (s *Snapshot) NetworkGateways(network, cluster string) []NetworkGateway {
	var all, own []NetworkGateway
	add := func(gateways []*configv1.NetworkGateway) {
		for _, g := range gateways {
			if g.GetNetwork() != network {
				continue
			}
			for _, a := range g.GetAddresses() {
				all = append(all, NetworkGateway{a, g.GetPort()})
				if g.GetCluster() == cluster {
					own = append(own, all[len(all)-1])
				}
			}
		}
	}
	for _, svc := range s.networks.list(network + sep) {
		add(networkGateways(svc))
	}
	add(s.mesh.gateways)
	if len(own) > 0 {
		all = own
	}
	slices.SortFunc(all, func(a, b NetworkGateway) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(all)
}

// NetworkGatewaysTopic names the answers of NetworkGateways.
func NetworkGatewaysTopic(network string) Topic { return Topic{SubjectNetworkGateways, network, ""} }

// ManyNetworks reports whether any network has gateways. Only then does the network of a proxy matter.
func (s *Snapshot) ManyNetworks() bool { return s.networks.len() > 0 || len(s.mesh.gateways) > 0 }

// ManyNetworksTopic names the answer of ManyNetworks.
func ManyNetworksTopic() Topic { return Topic{SubjectNetworkGateways, "", ""} }
