package mesh

import (
	"cmp"
	"slices"
)

// NetworkGateway is an address and a port through which a network is entered.
type NetworkGateway struct {
	Address string
	Port    uint32
}

// NetworkGateways lists where a network is entered, sorted; empty if no Service leads into it.
func (s *Snapshot) NetworkGateways(network string) []NetworkGateway {
	var found []NetworkGateway
	for _, svc := range s.networks.list(network + sep) {
		for _, a := range svc.GetNetworkGateway().GetAddresses() {
			found = append(found, NetworkGateway{a, svc.GetNetworkGateway().GetPort()})
		}
	}
	slices.SortFunc(found, func(a, b NetworkGateway) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(found)
}

// NetworkGatewaysTopic names the answer of NetworkGateways.
func NetworkGatewaysTopic(network string) Topic { return Topic{SubjectNetworkGateways, network, ""} }

// ManyNetworks reports whether any network has gateways. Only then does the network of a proxy matter.
func (s *Snapshot) ManyNetworks() bool { return s.networks.len() > 0 }

// ManyNetworksTopic names the answer of ManyNetworks.
func ManyNetworksTopic() Topic { return Topic{SubjectNetworkGateways, "", ""} }
