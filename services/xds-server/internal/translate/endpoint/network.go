package endpoint

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
)

// networks are those of the mesh as one class of proxies sees them.
type networks struct {
	reader *input.Reader
	// entrances has the gateways of the networks that were asked for, as far as the class can connect to them.
	entrances map[string][]mesh.NetworkGateway
}

// gateways lists those through which an endpoint of another network is reached; none for all others: where it is not known who is where, and where
// a network has no gateways, everybody reaches everybody.
func (n *networks) gateways(m meshEndpoint) []mesh.NetworkGateway {
	if !n.isInOtherNetwork(m) {
		return nil
	}
	found, known := n.entrances[m.GetNetwork()]
	if !known {
		found = slices.DeleteFunc(n.reader.NetworkGateways(m.GetNetwork()), func(g mesh.NetworkGateway) bool { return !n.reader.Class().Families.Has(g.Address) })
		if n.entrances == nil {
			n.entrances = map[string][]mesh.NetworkGateway{}
		}
		n.entrances[m.GetNetwork()] = found
	}
	return found
}

// isInOtherNetwork tells endpoints of another network than the class's, as far as it is known who is where.
func (n *networks) isInOtherNetwork(m meshEndpoint) bool {
	own := n.reader.Class().Network
	return own != "" && m.GetNetwork() != "" && m.GetNetwork() != own
}

// across puts the gateways of other networks in place of the endpoints there, locality by locality, with the weight of those together. Gateways find
// the way by SNI, so what is not called with mesh TLS cannot be reached there. A gateway that passes mesh TLS on does so in its own network alone: callers
// in others have told the networks apart already.
func (n *networks) replaceByGateways(c discovery.Cluster, endpoints []meshEndpoint) []meshEndpoint {
	if c.Passthrough {
		return slices.DeleteFunc(endpoints, n.isInOtherNetwork)
	}
	// Weights are multiplied so that those of each network divide by the number of its gateways.
	factor := uint32(1)
	away := false
	for _, m := range endpoints {
		if gateways := n.gateways(m); len(gateways) > 0 {
			away, factor = true, leastCommonMultiple(factor, uint32(len(gateways))) //nolint:gosec // not so many
		}
	}
	if !away {
		return endpoints
	}
	type entrance struct {
		locality string
		mesh.NetworkGateway
	}
	at := map[entrance]int{}
	out := make([]meshEndpoint, 0, len(endpoints))
	for _, m := range endpoints {
		gateways := n.gateways(m)
		m.factor = factor
		if len(gateways) == 0 {
			out = append(out, m)
			continue
		}
		if !n.usesMeshMTLS(c, m) {
			continue
		}
		for _, g := range gateways {
			share := m.weight() / uint32(len(gateways)) //nolint:gosec // not so many
			id := entrance{localityName(m.locality), g}
			if i, ok := at[id]; ok {
				out[i].Weight += share
				continue
			}
			at[id] = len(out)
			out = append(out, meshEndpoint{
				Endpoint: &configv1.Endpoint{Address: g.Address, Port: g.Port, Network: m.GetNetwork(), Health: configv1.Health_HEALTH_READY, Weight: share},
				locality: m.locality, cluster: m.cluster, mtls: true,
			})
		}
	}
	return out
}

// usesMeshMTLS tells whether the cluster secures connections to the endpoint by mesh TLS.
func (n *networks) usesMeshMTLS(c discovery.Cluster, m meshEndpoint) bool {
	if tls := c.Policy.GetTls(); tls != nil {
		return tls.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL
	}
	return m.mtls && n.reader.AutoMTLS(c.Service)
}

func leastCommonMultiple(a, b uint32) uint32 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}
