package meshconfig

import (
	"maps"
	"net/netip"
	"slices"

	mesh "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
	rules "fairlead.dev/services/config-watcher/internal/validate/networking"
)

// ParseNetworks decodes the entry meshNetworks of the mesh configuration's ConfigMap (mesh.v1alpha1.MeshNetworks): nil
// for an empty one. Only warnings and problems name file.
func ParseNetworks(file string, text []byte) (networks *mesh.MeshNetworks, warnings, problems object.Problems) {
	docs, problems := manifest.Parse(file, text)
	if len(problems) > 0 || len(docs) == 0 {
		return nil, nil, problems
	}
	d := decode.Decoder{Verdict: &decode.Verdict{Object: "MeshNetworks", Doc: docs[0]}}
	c := checker{rules.Checker{Checker: &check.Checker{Verdict: d.Verdict}}}
	c.FailIf(len(docs) > 1, "", nil, "more than one document", "keep one")
	out := &mesh.MeshNetworks{}
	if !d.Spec("", "MeshNetworks", docs[0].Tree, out) {
		return nil, nil, c.Problems
	}
	for _, name := range slices.Sorted(maps.Keys(out.GetNetworks())) {
		c.network(manifest.Field("networks", name), out.GetNetworks()[name])
	}
	if len(c.Problems) > 0 {
		return nil, nil, c.Problems
	}
	if len(out.GetNetworks()) == 0 {
		out = nil
	}
	return out, c.Warnings, nil
}

// network checks what Istio checks of a network.
func (c checker) network(at string, n *mesh.Network) {
	for i, e := range n.GetEndpoints() {
		at := manifest.Index(at+".endpoints", i)
		switch e := e.GetNe().(type) {
		case *mesh.Network_NetworkEndpoints_FromCidr:
			if _, err := netip.ParsePrefix(e.FromCidr); err != nil {
				c.Fail(at+".fromCidr", e.FromCidr, "no range of addresses", "write one such as 10.0.0.0/8")
			}
		case *mesh.Network_NetworkEndpoints_FromRegistry:
			c.FailIf(e.FromRegistry == "", at+".fromRegistry", nil, "empty", "write the id of a cluster")
		default:
			c.Fail(at, nil, "it says nothing", "write fromRegistry or fromCidr")
		}
	}
	for i, g := range n.GetGateways() {
		at := manifest.Index(at+".gateways", i)
		switch gw := g.GetGw().(type) {
		case *mesh.Network_IstioNetworkGateway_Address:
			c.FailIf(!check.IsIP(gw.Address) && !check.DNSSubdomain(gw.Address), at+".address", gw.Address, "neither an IP address nor a host name",
				"correct it")
		case *mesh.Network_IstioNetworkGateway_RegistryServiceName:
			c.FailIf(!check.FQDN(gw.RegistryServiceName), at+".registryServiceName", gw.RegistryServiceName, "no host of a service",
				"write one such as gateway.istio-system.svc.cluster.local")
		default:
			c.Fail(at, nil, "it has no address", "write address or registryServiceName")
		}
		check.Port(c.Verdict, at+".port", g.GetPort())
		if g.GetLocality() != "" {
			c.Warn(at+".locality", "an endpoint behind a gateway has its own locality", "remove it")
		}
	}
}
