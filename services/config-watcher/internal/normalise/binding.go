package normalise

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
)

// bindMatches makes the gateways of a VirtualService, whose names are resolved, list all that its matches name. A match may name gateways that
// the object does not: they override the object's for that match. The matches that name none are bound to the object's own by name then.
func bindMatches(vs *networking.VirtualService) {
	all := slices.Clone(vs.Gateways)
	eachMatch(vs, func(m sourced) {
		for _, g := range m.GetGateways() {
			if !slices.Contains(all, g) {
				all = append(all, g)
			}
		}
	})
	if len(all) == len(vs.Gateways) {
		return
	}
	for _, r := range vs.Http {
		if len(r.Match) == 0 {
			r.Match = []*networking.HTTPMatchRequest{{}}
		}
		for _, m := range r.Match {
			m.Gateways = bound(vs.Gateways, m)
		}
	}
	for _, r := range vs.Tls {
		for _, m := range r.Match {
			m.Gateways = bound(vs.Gateways, m)
		}
	}
	for _, r := range vs.Tcp {
		if len(r.Match) == 0 {
			r.Match = []*networking.L4MatchAttributes{{}}
		}
		for _, m := range r.Match {
			m.Gateways = bound(vs.Gateways, m)
		}
	}
	vs.Gateways = all
}

// sourced is what matches of all protocols say of where a request comes from.
type sourced interface {
	GetGateways() []string
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
}

func eachMatch(vs *networking.VirtualService, f func(sourced)) {
	for _, r := range vs.Http {
		for _, m := range r.Match {
			f(m)
		}
	}
	for _, r := range vs.Tls {
		for _, m := range r.Match {
			f(m)
		}
	}
	for _, r := range vs.Tcp {
		for _, m := range r.Match {
			f(m)
		}
	}
}

// bound lists the gateways of a match in an object with its own ones. Only sidecars have the labels and the namespace of a source.
func bound(own []string, m sourced) []string {
	if len(m.GetGateways()) > 0 {
		return m.GetGateways()
	}
	if (len(m.GetSourceLabels()) > 0 || m.GetSourceNamespace() != "") && slices.Contains(own, contract.MeshGateway) {
		return []string{contract.MeshGateway}
	}
	return slices.Clone(own)
}
