package endpoint

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
)

// networks are the mesh's networks as a class of proxies sees them.
type networks struct {
	reader *input.Reader
	// entrances caches the gateways that the class can connect to, for endpoints of a network and cluster.
	entrances map[networkCluster][]mesh.NetworkGateway
}

// networkCluster is where an endpoint is.
type networkCluster struct{ network, cluster string }

// gateways lists the gateways through which the class reaches an endpoint of another network. There are none for
// endpoints that the class reaches directly: of its own or an unknown network, or of a network without gateways.
func (n *networks) gateways(m meshEndpoint) []mesh.NetworkGateway {
	if !n.isInOtherNetwork(m) {
		return nil
	}
	at := networkCluster{m.GetNetwork(), m.cluster}
	found, known := n.entrances[at]
	if !known {
		found = slices.DeleteFunc(n.reader.NetworkGateways(at.network, at.cluster),
			func(g mesh.NetworkGateway) bool { return !n.reader.Class().Families.Has(g.Address) })
		if n.entrances == nil {
			n.entrances = map[networkCluster][]mesh.NetworkGateway{}
		}
		n.entrances[at] = found
	}
	return found
}

// isInOtherNetwork reports whether the endpoint's network is known to differ from the class's.
func (n *networks) isInOtherNetwork(m meshEndpoint) bool {
	own := n.reader.Class().Network
	return own != "" && m.GetNetwork() != "" && m.GetNetwork() != own
}

// replaceByGateways replaces the endpoints of other networks by the gateways of these networks, for each locality, with
// the same total weight. Gateways route by SNI, so an endpoint that is not called with mesh TLS is dropped. A gateway's
// AUTO_PASSTHROUGH cluster has endpoints of its own network only.
func (n *networks) replaceByGateways(c discovery.Cluster, endpoints []meshEndpoint) []meshEndpoint {
	if c.AutoPassthrough {
		return slices.DeleteFunc(endpoints, n.isInOtherNetwork)
	}
	// The weights of all endpoints are multiplied, so that those of each network can be divided by the number of its
	// gateways.
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
		away     bool
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
			id := entrance{localityName(m.locality), m.away, g}
			if i, ok := at[id]; ok {
				out[i].Weight += share
				continue
			}
			at[id] = len(out)
			out = append(out, meshEndpoint{
				Endpoint: &configv1.Endpoint{Address: g.Address, Port: g.Port, Network: m.GetNetwork(), Health: configv1.Health_HEALTH_READY,
					Weight: share},
				locality: m.locality, cluster: m.cluster, away: m.away, mtls: true,
			})
		}
	}
	return out
}

// usesMeshMTLS reports whether the cluster connects to the endpoint with mesh mTLS.
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
