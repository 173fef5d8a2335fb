package input

import (
	"slices"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// EnvoyFilters lists, in the order in which they apply, the EnvoyFilters for clients in the class's namespace that may matter at a place.
// Which of them are for the class, and meant for its proxies, Selected and Meets say: a result that does not ask is shared.
func (r *Reader) EnvoyFilters(place mesh.PatchContext) []*mesh.EnvoyFilter {
	topic := mesh.Topic{Subject: subjectPatches, A: string(place)}
	return derive(r, topic, func(r *Reader) []*mesh.EnvoyFilter {
		r.record(mesh.EnvoyFiltersTopics(r.client(), place)...)
		return r.view.state.EnvoyFilters(r.client(), place)
	}, slices.Equal)
}

// Selected reports whether the filter selects the class's workload. Targets are of the filter's own namespace.
func (r *Reader) Selected(f *mesh.EnvoyFilter) bool {
	if len(f.Spec.GetTargetRefs()) > 0 && !r.IsOwnNamespace(f.Key.Namespace) {
		return false
	}
	return !f.Selective() || f.Selects(r.Labels())
}

// Meets reports whether the class's proxies meet a condition; nil is none.
func (r *Reader) Meets(p *mesh.ProxyMatch) bool {
	return p == nil || slices.Contains(r.only(WorkloadScope).ProxyMatches, p.ID)
}

// Patched notes that a filter has changed what is built, for people who ask.
func (r *Reader) Patched(f *mesh.EnvoyFilter) { traceOne(r.trace, &f.Config) }

// Sides lists the sides of a proxy that the class has.
func (r *Reader) Sides() []string {
	switch r.Class().Type {
	case class.Sidecar:
		return []string{mesh.Inbound, mesh.Outbound}
	case class.Router:
		return []string{mesh.Gateways}
	default:
		return nil
	}
}
