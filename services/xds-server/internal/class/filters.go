package class

import (
	"slices"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"fairlead.dev/proto/fairlead/contract"
)

// Filters says which of the extensions that policies need or use a proxy has. Envoy lists its extensions in the node;
// of a client that lists none, the filters are expected but that of filter chains, which is the newest.
type Filters uint8

// Filters of policies.
const (
	// FilterChains is the HTTP filter that is a chain of filters, of Envoy 1.39, which travels as an extension config.
	FilterChains Filters = 1 << iota
	// RBAC, ExtAuthz and JWT are the HTTP filters; RBAC and ExtAuthz are the network filters too.
	RBAC
	ExtAuthz
	JWT
	// StatsLogger is the access log that counts.
	StatsLogger

	usualFilters = RBAC | ExtAuthz | JWT
	// newestFilters are those of the newest Envoy beside an agent of this release, or beside Istio's.
	newestFilters = usualFilters | FilterChains | StatsLogger
)

// filterNames lists the extensions that make up each.
var filterNames = map[string]Filters{
	"envoy.filters.http.filter_chain": FilterChains,
	"envoy.filters.http.rbac":         RBAC,
	"envoy.filters.http.ext_authz":    ExtAuthz,
	"envoy.filters.http.jwt_authn":    JWT,
	"envoy.access_loggers.stats":      StatsLogger,
}

// IsFilter reports whether an extension of a node is one of Filters.
func IsFilter(extension string) bool { return filterNames[extension] != 0 }

func filtersOf(n *core.Node) Filters {
	if len(n.GetExtensions()) == 0 {
		return usualFilters
	}
	var out Filters
	for _, e := range n.GetExtensions() {
		out |= filterNames[e.GetName()]
	}
	if losesExtensionConfigs(n) {
		out &^= FilterChains
	}
	return out
}

// losesExtensionConfigs reports whether the proxy is of a node-agent that came before slots of policies. An xds-server
// of its release, to which an upgrade may be rolled back, takes the slots away before the listeners that name them.
func losesExtensionConfigs(n *core.Node) bool {
	m := metadata{fields: n.GetMetadata().GetFields()}
	return m.text(versionMetadata) != "" && m.text(contract.KeepsExtensionConfigs) != "true"
}

// Has reports whether the proxy has all of the filters.
func (f Filters) Has(all Filters) bool { return f&all == all }

// Names lists the extensions, sorted.
func (f Filters) Names() []string {
	var out []string
	for name, bit := range filterNames {
		if f&bit != 0 {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
