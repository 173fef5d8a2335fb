package whole

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

// relative are the operations whose result depends on patches that came before.
var relative = map[networking.EnvoyFilter_Patch_Operation]bool{
	networking.EnvoyFilter_Patch_INSERT_BEFORE: true, networking.EnvoyFilter_Patch_INSERT_AFTER: true,
	networking.EnvoyFilter_Patch_REPLACE: true,
}

// internals are names of Istio's proxies that Fairlead's do not have, with what to use instead.
var internals = map[string]string{
	"istio.metadata_exchange":        "metrics need no such filter here; remove the patch",
	"istio.stats":                    "use Telemetry",
	"envoy.filters.http.istio_authn": "use PeerAuthentication",
	"istio_authn":                    "use PeerAuthentication",
	"istio.alpn":                     "remove the patch",
	"mixer":                          "remove the patch: Mixer is gone since Istio 1.8",
	"envoy.filters.http.mixer":       "remove the patch: Mixer is gone since Istio 1.8",
	"envoy.filters.http.wasm.metadata_exchange": "remove the patch",
}

// oldFilters are names that Envoy once used for its own filters. A match by such a name matches nothing.
var oldFilters = map[string]string{
	"envoy.http_connection_manager": "envoy.filters.network.http_connection_manager", "envoy.tcp_proxy": "envoy.filters.network.tcp_proxy",
	"envoy.router": "envoy.filters.http.router",
	"envoy.cors":   "envoy.filters.http.cors", "envoy.fault": "envoy.filters.http.fault", "envoy.lua": "envoy.filters.http.lua",
	"envoy.ext_authz":  "envoy.filters.http.ext_authz",
	"envoy.rate_limit": "envoy.filters.http.ratelimit", "envoy.grpc_web": "envoy.filters.http.grpc_web",
	"envoy.gzip":                   "envoy.filters.http.compressor",
	"envoy.listener.tls_inspector": "envoy.filters.listener.tls_inspector", "envoy.redis_proxy": "envoy.filters.network.redis_proxy",
	"envoy.mongo_proxy": "envoy.filters.network.mongo_proxy",
}

// checkPatches finds hazards of EnvoyFilters.
func checkPatches(r *run) {
	for o, f := range bodies[*networking.EnvoyFilter](r, "EnvoyFilter") {
		r.report(o, finding.EnvoyFilterInternals, "spec", nil, "depends on how proxies are configured inside, which may change with any version",
			"prefer another kind where one does the same, and look at it at each upgrade")
		for i, p := range f.GetConfigPatches() {
			r.patch(o, f, fmt.Sprintf("spec.configPatches[%d]", i), p)
		}
	}
}

func (r *run) patch(o *Object, f *networking.EnvoyFilter, at string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	operation, to := p.GetPatch().GetOperation(), p.GetApplyTo()
	field := at + ".patch.operation"
	replaces := to == networking.EnvoyFilter_HTTP_FILTER || to == networking.EnvoyFilter_NETWORK_FILTER
	if relative[operation] && f.GetPriority() == 0 && (operation != networking.EnvoyFilter_Patch_REPLACE || replaces) {
		code, more := finding.PatchRelative, ""
		if p.GetMatch().GetProxy().GetProxyVersion() != "" {
			code, more = finding.PatchRelativeOfVersion, ", and proxyVersion lets it go during an upgrade"
		}
		r.report(o, code, field, operation.String(),
			"changes what other EnvoyFilters have made, and without a priority their order is that of their age"+more,
			"set spec.priority, or use INSERT_FIRST or ADD")
	}
	routes := to == networking.EnvoyFilter_ROUTE_CONFIGURATION || to == networking.EnvoyFilter_HTTP_ROUTE
	switch {
	case operation == networking.EnvoyFilter_Patch_REPLACE && !replaces:
		r.report(o, finding.PatchReplaceIgnored, field, operation.String(),
			"has no effect on "+to.String()+": only HTTP_FILTER and NETWORK_FILTER are replaced", "use MERGE, or REMOVE and ADD")
	case operation == networking.EnvoyFilter_Patch_ADD && routes:
		r.report(o, finding.PatchAddIgnored, field, operation.String(), "has no effect on "+to.String(), "use INSERT_FIRST for a route, or MERGE")
	case operation == networking.EnvoyFilter_Patch_REMOVE && routes:
		r.report(o, finding.PatchRemoveIgnored, field, operation.String(), "has no effect on "+to.String(), "use MERGE, or a VirtualService")
	}
	r.names(o, at, p)
}

// names reports names of filters in a match, or in the value, that no proxy has.
func (r *run) names(o *Object, at string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	filter := p.GetMatch().GetListener().GetFilterChain().GetFilter()
	look := func(field, name string) {
		switch now := oldFilters[name]; {
		case now != "":
			r.report(o, finding.PatchInternals, field, name, "Envoy no longer has a filter of this name: the match matches nothing", "write "+now)
		case internals[name] != "":
			r.report(o, finding.PatchInternals, field, name, "is a filter of Istio's own proxy, which Fairlead's proxies do not have",
				internals[name])
		}
	}
	look(at+".match.listener.filterChain.filter.name", filter.GetName())
	look(at+".match.listener.filterChain.filter.subFilter.name", filter.GetSubFilter().GetName())
	if p.GetPatch().GetOperation() != networking.EnvoyFilter_Patch_REMOVE {
		name := p.GetPatch().GetValue().GetFields()["name"].GetStringValue()
		if remedy := internals[name]; remedy != "" {
			r.report(o, finding.PatchInternals, at+".patch.value.name", name,
				"is a filter of Istio's own proxy, which Fairlead's proxies do not have",
				remedy)
		}
	}
	if name := p.GetMatch().GetListener().GetName(); strings.HasPrefix(name, "virtual") && name != "virtualInbound" &&
		name != "virtualOutbound" {
		r.report(o, finding.PatchInternals, at+".match.listener.name", name, "no proxy has a listener of this name",
			"write virtualInbound or virtualOutbound")
	}
}
