package mesh

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"
)

// PatchContext is a kind of resources that patches apply to, on one side of a proxy: "<kind>/<side>".
type PatchContext string

// Sides of a proxy.
const (
	Inbound  = "inbound"
	Outbound = "outbound"
	Gateways = "gateway"
)

// Kinds of resources.
const (
	PatchedListeners  = "listener"
	PatchedRoutes     = "route configuration"
	PatchedHosts      = "virtual host"
	PatchedClusters   = "cluster"
	PatchedExtensions = "extension config"
	PatchedBootstraps = "bootstrap"
)

// At returns the context of a kind of resources on a side.
func At(resource, side string) PatchContext { return PatchContext(resource + "/" + side) }

// patchContexts lists the contexts in which a patch may have an effect. Inbound routes are part of their listeners, and
// only outbound virtual hosts are resources. A sidecar has one bootstrap for both of its sides; it counts as inbound.
func patchContexts(p *Patch) []PatchContext {
	if p.Operation == networking.EnvoyFilter_Patch_INVALID {
		return nil
	}
	var kinds []string
	routes, bootstrap := false, false
	switch p.Spec.GetApplyTo() {
	case networking.EnvoyFilter_LISTENER, networking.EnvoyFilter_FILTER_CHAIN, networking.EnvoyFilter_NETWORK_FILTER,
		networking.EnvoyFilter_HTTP_FILTER, networking.EnvoyFilter_LISTENER_FILTER:
		kinds = []string{PatchedListeners}
	case networking.EnvoyFilter_ROUTE_CONFIGURATION:
		kinds, routes = []string{PatchedRoutes}, true
	case networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE:
		kinds, routes = []string{PatchedRoutes, PatchedHosts}, true
	case networking.EnvoyFilter_CLUSTER:
		kinds = []string{PatchedClusters}
	case networking.EnvoyFilter_EXTENSION_CONFIG:
		kinds = []string{PatchedExtensions}
	case networking.EnvoyFilter_BOOTSTRAP:
		kinds, bootstrap = []string{PatchedBootstraps}, true
	}
	sides := []string{Inbound, Outbound, Gateways}
	switch p.Spec.GetMatch().GetContext() {
	case networking.EnvoyFilter_ANY:
	case networking.EnvoyFilter_SIDECAR_INBOUND:
		sides = sides[:1]
	case networking.EnvoyFilter_SIDECAR_OUTBOUND:
		sides = sides[1:2]
	case networking.EnvoyFilter_GATEWAY:
		sides = sides[2:]
	default:
		return nil
	}
	if bootstrap && sides[0] == Outbound {
		sides = []string{Inbound}
	}
	var out []PatchContext
	for _, side := range sides {
		if routes && side == Inbound {
			out = append(out, At(PatchedListeners, side))
			continue
		}
		for _, kind := range kinds {
			if kind != PatchedHosts || side == Outbound {
				out = append(out, At(kind, side))
			}
		}
	}
	return out
}

// PatchContexts lists the contexts of the filter's patches, each once.
func (f *EnvoyFilter) PatchContexts() []PatchContext {
	var out []PatchContext
	for _, p := range f.Patches {
		out = append(out, p.Contexts...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
