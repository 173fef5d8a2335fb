package virtualservice

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/proto/fairlead/contract"
)

// BindMatches makes a VirtualService list all gateways that its matches name. A match's own gateways replace those of
// the VirtualService; so that the longer list does not widen the other matches, BindMatches writes the VirtualService's
// former gateways into each of them. Gateway names are resolved before.
func BindMatches(vs *networking.VirtualService) {
	all := slices.Clone(vs.Gateways)
	EachMatch(vs, func(m SourceMatch) {
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
			m.Gateways = boundGateways(vs.Gateways, m)
		}
	}
	for _, r := range vs.Tls {
		for _, m := range r.Match {
			m.Gateways = boundGateways(vs.Gateways, m)
		}
	}
	for _, r := range vs.Tcp {
		if len(r.Match) == 0 {
			r.Match = []*networking.L4MatchAttributes{{}}
		}
		for _, m := range r.Match {
			m.Gateways = boundGateways(vs.Gateways, m)
		}
	}
	vs.Gateways = all
}

// SourceMatch is what HTTP, TLS and TCP matches have in common about the source of a request.
type SourceMatch interface {
	GetGateways() []string
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
}

// EachMatch calls f for every match of the routes.
func EachMatch(vs *networking.VirtualService, f func(SourceMatch)) {
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

// boundGateways returns the gateways of a match in an object with the gateways own. A match of source labels or of a
// source namespace holds for sidecars alone.
func boundGateways(own []string, m SourceMatch) []string {
	if len(m.GetGateways()) > 0 {
		return m.GetGateways()
	}
	if (len(m.GetSourceLabels()) > 0 || m.GetSourceNamespace() != "") && slices.Contains(own, contract.MeshGateway) {
		return []string{contract.MeshGateway}
	}
	return slices.Clone(own)
}
