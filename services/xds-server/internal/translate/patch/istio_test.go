package patch_test

import (
	"strings"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"fairlead.dev/services/xds-server/internal/class"
)

// Patches that Istio accepts although its reference does not foresee them act as in Istio, often without effect.
func TestUnforeseenPatchesActAsInIstio(t *testing.T) {
	on := func(key func() *class.Key, url, name string) func(patch string) testCase {
		return func(patch string) testCase { return testCase{key: key, url: url, name: name, spec: patch} }
	}
	vin := on(sidecar, resource.ListenerType, "virtualInbound")
	tcp := on(sidecar, resource.ListenerType, "10.96.0.1_3306")
	cds := on(sidecar, resource.ClusterType, "outbound|80||"+web)
	rds := on(sidecar, resource.RouteType, "80")
	vhds := on(discovered, resource.VirtualHostType, "80/"+web+":80")
	onDemand := on(onDemand, resource.VirtualHostType, "80/"+web+":80")
	const (
		add     = "operation: ADD, value: "
		merge   = "operation: MERGE, value: "
		replace = "operation: REPLACE, value: "
		remove  = "operation: REMOVE"
		router  = `{name: mine, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router, suppress_envoy_headers: true}}`
		theHost = "routeConfiguration: {vhost: {name: '" + web + ":80'}}"
	)
	for name, c := range map[string]testCase{
		"cluster: replace":       cds(filter("CLUSTER", "", replace+"{name: x, connect_timeout: 3s}")).same(),
		"cluster: unknown field": cds(filter("CLUSTER", "", merge+"{connect_timeout: 3s, conect_timeout: 4s}")).gives("3s 0 0"),
		"cluster: insert as another": cds(
			filter("CLUSTER", "", "operation: INSERT_FIRST, value: {name: 'outbound|80||"+web+"', connect_timeout: 1s}")).rejected("already"),
		"cluster: of a waypoint": cds(
			"configPatches: [{applyTo: CLUSTER, match: {context: WAYPOINT}, patch: {operation: MERGE, value: {a: b}}}]").same(),
		"cluster: too long a version": cds(filter("CLUSTER", "proxy: {proxyVersion: '.*"+strings.Repeat("|a", 600)+"'}",
			merge+"{connect_timeout: 3s}")).same(),
		"cluster: name wins": cds(filter("CLUSTER", "cluster: {name: 'outbound|80||"+web+"', portNumber: 7}",
			merge+"{connect_timeout: 3s}")).gives("3s 0 0"),
		"listener: replace": vin(filter("LISTENER", "", replace+"{name: virtualInbound}")).same(),
		"listener: by its port's name": vin(filter("LISTENER", "context: SIDECAR_INBOUND, listener: {portName: whatever}",
			merge+"{per_connection_buffer_limit_bytes: 7}")).gives("7"),
		"chain: replace":                 vin(filter("FILTER_CHAIN", "", replace+"{name: mine}")).same(),
		"listener filter: merge of none": vin(filter("LISTENER_FILTER", "", merge+"{name: mine}")).same(),
		"listener filter: remove none":   vin(filter("LISTENER_FILTER", "", remove)).same(),
		"listener filter: match of a cluster": vin(filter("LISTENER_FILTER", "context: SIDECAR_INBOUND, cluster: {name: a}", add+proxyLF)).has(
			"proxy"),
		"network filter: remove none":  tcp(filter("NETWORK_FILTER", "", remove)).same(),
		"network filter: replace none": tcp(filter("NETWORK_FILTER", "listener: {filterChain: {name: ''}}", replace+limit)).same(),
		"network filter: merge of a type": tcp(
			filter("NETWORK_FILTER", "", merge+
				`{name: mine, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, max_connect_attempts: 7}}`)).has(": mine"),
		"network filter: merge of no type": tcp(filter("NETWORK_FILTER", "", merge+"{name: mine}")).same(),
		"http filter: merge of a type": vin(filter("HTTP_FILTER", "context: SIDECAR_INBOUND", merge+router)).has(
			"(grpc_stats fault cors mine)"),
		"http filter: remove none": vin(filter("HTTP_FILTER", "listener: {filterChain: {filter: {"+hcmName+"}}}", remove)).same(),
		"routes: add":              rds(filter("ROUTE_CONFIGURATION", "", add+"{name: mine}")).same(),
		"routes: remove":           rds(filter("ROUTE_CONFIGURATION", "", remove)).same(),
		"routes: of a gateway's port": rds(filter("ROUTE_CONFIGURATION", "routeConfiguration: {gateway: a/b, portName: http}",
			merge+"{request_headers_to_remove: [x]}")).has("-x"),
		"virtual host: by a route": rds(
			filter("VIRTUAL_HOST", "routeConfiguration: {vhost: {name: '"+web+":80', route: {name: none}}}",
				merge+"{include_attempt_count_in_response: true}")).has(web + ":80(default)+count"),
		"virtual host: replace": rds(filter("VIRTUAL_HOST", theHost, replace+"{name: mine, domains: [mine.com]}")).has(
			"mine()").lacks(web),
		"virtual host: replace all": rds(filter("VIRTUAL_HOST", "", replace+"{name: mine, domains: [mine.com]}")).rejected(
			"two virtual hosts"),
		"virtual host: insert": rds(
			filter("VIRTUAL_HOST", "", "operation: INSERT_BEFORE, value: {name: mine, domains: [mine.com]}")).has("mine()"),
		"route: replace": rds(filter("HTTP_ROUTE", "routeConfiguration: {vhost: {route: {name: default}}}",
			replace+"{name: r, match: {prefix: /}, direct_response: {status: 418}}")).same(),
		"resource: replace": vhds(
			filter("VIRTUAL_HOST", theHost, replace+"{name: mine, domains: [web], include_attempt_count_in_response: true}")).has("80/" + web +
			":80()+count"),
		"resource: replace with others": vhds(filter("VIRTUAL_HOST", theHost, replace+"{name: mine, domains: [mine.com]}")).rejected(
			"domains cannot be patched"),
		"on demand: replace": onDemand(
			filter("VIRTUAL_HOST", theHost, replace+"{name: mine, domains: ["+web+"], include_attempt_count_in_response: true}")).has("80/" + web +
			":80()+count"),
		"on demand: replace with others": onDemand(filter("VIRTUAL_HOST", theHost, replace+"{name: mine, domains: [mine.com]}")).has(
			"allow_any"),
	} {
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}
