package input

import (
	"slices"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// EnvoyFilters lists the EnvoyFilters of a patch context that may apply to clients in the class's namespace, in the
// order in which they apply. The caller asks Selected and Meets for each whether it applies to the class; a result for
// which it has asked neither is shared.
func (r *Reader) EnvoyFilters(context mesh.PatchContext) []*mesh.EnvoyFilter {
	topic := mesh.Topic{Subject: subjectPatches, A: string(context)}
	return derive(r, topic, func(r *Reader) []*mesh.EnvoyFilter {
		r.record(mesh.EnvoyFiltersTopics(r.client(), context)...)
		return r.view.State().EnvoyFilters(r.client(), context)
	}, slices.Equal)
}

// Selected reports whether the filter selects the class's workload. targetRefs refer to objects of the filter's own
// namespace.
func (r *Reader) Selected(f *mesh.EnvoyFilter) bool {
	if len(f.Spec.GetTargetRefs()) > 0 && !r.IsOwnNamespace(f.Key.Namespace) {
		return false
	}
	return !f.Selective() || f.Selects(r.Labels())
}

// Meets reports whether the class's proxies meet the proxy match of a patch. A nil match is met by all proxies.
func (r *Reader) Meets(p *mesh.ProxyMatch) bool {
	return p == nil || slices.Contains(r.keyIn(WorkloadScope).ProxyMatches, p.ID)
}

// Patched records for a Trace that a filter has changed the resource.
func (r *Reader) Patched(f *mesh.EnvoyFilter) { traceOne(r.trace, &f.Config) }

// Sides lists which sides the class's proxies have: inbound and outbound, or gateway.
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
