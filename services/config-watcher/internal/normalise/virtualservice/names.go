package virtualservice

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
)

// ResolveNames makes hosts what fqdn returns for them, and gateways "<namespace>/<name>", in place.
func ResolveNames(vs *networking.VirtualService, namespace string, fqdn func(host string) string) {
	for i, h := range vs.Hosts {
		vs.Hosts[i] = fqdn(h)
	}
	gateways := func(list []string) {
		for i, g := range list {
			list[i] = contract.GatewayName(g, namespace)
		}
	}
	destination := func(d *networking.Destination) {
		if d != nil {
			d.Host = fqdn(d.Host)
		}
	}
	gateways(vs.Gateways)
	EachMatch(vs, func(m SourceMatch) { gateways(m.GetGateways()) })
	for _, r := range vs.Http {
		for _, d := range r.Route {
			destination(d.Destination)
		}
		destination(r.Mirror)
		for _, mirror := range r.Mirrors {
			destination(mirror.Destination)
		}
	}
	for _, r := range vs.Tls {
		for _, m := range r.Match {
			for i, name := range m.GetSniHosts() {
				m.SniHosts[i] = strings.ToLower(name)
			}
		}
		for _, d := range r.Route {
			destination(d.Destination)
		}
	}
	for _, r := range vs.Tcp {
		for _, d := range r.Route {
			destination(d.Destination)
		}
	}
}
