package validate

import (
	"strings"
	"testing"
)

const lua = `name: envoy.filters.http.lua, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: "x()"}}`

// ef makes an EnvoyFilter of one patch.
func ef(applyTo, match, patch string) string {
	return of("EnvoyFilter", "{configPatches: [{applyTo: "+applyTo+", match: {"+match+"}, patch: {"+patch+"}}]}")
}

func TestEnvoyFilter(t *testing.T) {
	const (
		manager = "filter: {name: envoy.filters.network.http_connection_manager"
		router  = "listener: {filterChain: {" + manager + ", subFilter: {name: envoy.filters.http.router}}}}"
	)
	for _, c := range []struct{ name, yaml, want string }{
		{"http filter", ef("HTTP_FILTER", "context: SIDECAR_INBOUND, "+router, "operation: INSERT_BEFORE, value: {"+lua+"}"), ""},
		{"listener filter", ef("LISTENER_FILTER", "listener: {listenerFilter: envoy.filters.listener.tls_inspector}", "operation: REMOVE"), ""},
		{"cluster", ef("CLUSTER", "cluster: {service: a.com, portNumber: 80, subset: v1}", "operation: MERGE, value: {connect_timeout: 1s}"), ""},
		{"camel case", ef("CLUSTER", "cluster: {name: PassthroughCluster}", "operation: MERGE, value: {connectTimeout: 1s}"), ""},
		{"route", ef("HTTP_ROUTE", "routeConfiguration: {vhost: {name: 'a:80', route: {name: default, action: ROUTE}}}",
			"operation: MERGE, value: {route: {timeout: 1s}}"), ""},
		{"gateway route", ef("VIRTUAL_HOST", "context: GATEWAY, routeConfiguration: {gateway: a/b, portName: https, portNumber: 443}",
			"operation: MERGE, value: {include_request_attempt_count: true}"), ""},
		{"extension config", ef("EXTENSION_CONFIG", "context: ANY", "operation: ADD, value: {"+lua+"}"), ""},
		{"bootstrap", ef("BOOTSTRAP", "context: GATEWAY", "operation: MERGE, value: {stats_flush_interval: 7s}"), ""},
		{"replaced lists", ef("CLUSTER", "cluster: {}", "operation: MERGE_AND_REPLACE_LIST, value: {filters: []}"), ""},
		{"typed struct", ef("HTTP_FILTER", router,
			`operation: INSERT_BEFORE, value: {name: a, typed_config: {"@type": type.googleapis.com/udpa.type.v1.TypedStruct, type_url: type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, value: {default_source_code: {inline_string: a}}}}`), ""},
		{"proxy", ef("CLUSTER", "proxy: {proxyVersion: '^1\\.2', metadata: {A: b}}", "operation: MERGE, value: {connect_timeout: 1s}"), ""},
		{"selected", of("EnvoyFilter",
			"{priority: -10, workloadSelector: {labels: {a: b}}, configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: "+
				"{connect_timeout: 1s}}}]}"), ""},
		{
			"target", of("EnvoyFilter", "{targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: a}], configPatches: [{applyTo: "+
				"CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 1s}}}]}"), ""},

		{"no operation", ef("CLUSTER", "", "value: {name: a}"), `patch\.operation: missing`},
		{"a duration in Go's form", ef("CLUSTER", "", "operation: MERGE, value: {connect_timeout: 500ms}"), ""},
		{"unknown value of an enum", ef("CLUSTER", "", "operation: MERGE, value: {lb_policy: ROUND}"), `lb_policy: "ROUND": unknown value`},
		{"nothing to merge", ef("CLUSTER", "", "operation: MERGE, value: {}"), `~value: has no effect: there is nothing to merge`},
		{"a listener without a name", ef("LISTENER", "", "operation: ADD, value: {}"), `~value: has no effect: a listener without a name`},
		{"any match of a listener filter",
			ef("LISTENER_FILTER", "cluster: {}", "operation: ADD, value: {name: envoy.filters.listener.tls_inspector}"),
			`~match\.cluster: has no effect`},
		{"merge of all filters of a type", ef("HTTP_FILTER", "", "operation: MERGE, value: {"+lua+"}"), ""},
		{"sub filter of another filter", ef("HTTP_FILTER", "listener: {filterChain: {filter: {name: a, subFilter: {name: b}}}}",
			"operation: REMOVE"), `filter\.name: "a": has no HTTP filters`},
		{"sub filter by an old name", ef("HTTP_FILTER",
			"listener: {filterChain: {filter: {name: envoy.http_connection_manager, subFilter: {name: b}}}}", "operation: REMOVE"),
			`~filter\.name: matches nothing: an old name`},
		{"filter of a chain", ef("FILTER_CHAIN", "listener: {filterChain: {filter: {name: a}}}", "operation: REMOVE"),
			`~filterChain\.filter: has no effect`},
		{"hosts of a table", ef("ROUTE_CONFIGURATION", "routeConfiguration: {vhost: {name: a}}",
			"operation: MERGE, value: {request_headers_to_remove: [a]}"), `~routeConfiguration\.vhost: has no effect`},
		{"waypoint, whatever it says", of("EnvoyFilter", "{configPatches: [{applyTo: CLUSTER, match: {context: WAYPOINT, waypoint: {}}}]}"),
			`~match\.context: has no effect`},
		{"long version", ef("CLUSTER", "proxy: {proxyVersion: '"+strings.Repeat("(", 1025)+"'}", "operation: REMOVE"),
			`~proxyVersion: matches no proxy`},
		{"all workloads", of("EnvoyFilter", "{workloadSelector: {}, configPatches: [{applyTo: CLUSTER, patch: {operation: REMOVE}}]}"),
			`~workloadSelector: selects all workloads`},
		{"a label that none has", of("EnvoyFilter",
			"{workloadSelector: {labels: {a b: c}}, configPatches: [{applyTo: CLUSTER, patch: {operation: REMOVE}}]}"), `~selects nothing`},
		{"name of a target", of("EnvoyFilter", "{targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io}]}"),
			`targetRefs\[0\]\.name: missing`},
		{"reserved annotation", strings.Replace(of("EnvoyFilter", "{}"), "namespace: apps",
			"namespace: apps, annotations: {internal.istio.io/parents: a}", 1), `annotations.*parents.*: reserved for Istio`},
		{"dry run", strings.Replace(of("EnvoyFilter", "{}"), "namespace: apps", "namespace: apps, annotations: {istio.io/dry-run: 'true'}", 1),
			`dry-run.*: a EnvoyFilter cannot be tried`},
		{"nothing", of("EnvoyFilter", "{}"), `~spec.configPatches: has no effect: there is no patch`},
		{"no applyTo", of("EnvoyFilter", "{configPatches: [{patch: {operation: ADD}}]}"), `configPatches\[0\]\.applyTo: missing`},
		{"no patch", of("EnvoyFilter", "{configPatches: [{applyTo: CLUSTER}]}"), `configPatches\[0\]\.patch: missing`},
		{"unknown field of a bootstrap", ef("BOOTSTRAP", "", "operation: MERGE, value: {a: b}"), `~patch\.value\.a: is left out: unknown field`},
		{"added bootstrap", ef("BOOTSTRAP", "", "operation: ADD, value: {admin: {profile_path: /a}}"),
			`~operation: has no effect: ADD changes nothing of a BOOTSTRAP`},
		{"another node", ef("BOOTSTRAP", "", "operation: MERGE, value: {node: {id: a}}"), `patch\.value\.node: is the agent's`},
		{"another admin address", ef("BOOTSTRAP", "", "operation: MERGE, value: {admin: {address: {pipe: {path: /a}}}}"),
			`patch\.value\.admin\.address: is the agent's`},
		{"other sources", ef("BOOTSTRAP", "", "operation: MERGE, value: {dynamic_resources: {lds_config: {ads: {}}}}"),
			`patch\.value\.dynamic_resources: is the agent's`},
		{"wrong kind of match", ef("CLUSTER", "listener: {portNumber: 80}", "operation: REMOVE"),
			`match\.listener: does not fit CLUSTER; match by cluster`},
		{"match where none fits", ef("EXTENSION_CONFIG", "listener: {}", "operation: ADD, value: {"+lua+"}"),
			`~match\.listener: has no effect: it does not fit EXTENSION_CONFIG`},
		{"waypoint match", ef("HTTP_FILTER", "waypoint: {portNumber: 80}", "operation: INSERT_FIRST, value: {"+lua+"}"), `match\.waypoint: `},
		{"waypoint", ef("CLUSTER", "context: WAYPOINT", "operation: REMOVE"), `~context: has no effect: waypoints are`},
		{"version", ef("CLUSTER", "proxy: {proxyVersion: '('}", "operation: REMOVE"), `proxyVersion: "\(": not a regular expression`},
		{"port", ef("CLUSTER", "cluster: {portNumber: 70000}", "operation: REMOVE"), `~cluster\.portNumber: matches nothing`},
		{"service", ef("CLUSTER", "cluster: {service: 'a..b'}", "operation: REMOVE"), `~cluster\.service: matches nothing`},
		{"cluster name and more", ef("CLUSTER", "cluster: {name: a, portNumber: 1}", "operation: REMOVE"), `~cluster\.name: stands alone`},
		{"port name", ef("LISTENER", "listener: {portName: a}", "operation: REMOVE"), `~listener\.portName: has no effect`},
		{"chain of a listener patch", ef("LISTENER", "listener: {filterChain: {name: a}}", "operation: REMOVE"),
			`~filterChain: has no effect: it does not fit LISTENER`},
		{"filter without a name", ef("NETWORK_FILTER", "listener: {filterChain: {filter: {}}}", "operation: REMOVE"), `filter\.name: missing`},
		{"sub filter of a network filter", ef("NETWORK_FILTER", router, "operation: REMOVE"), `subFilter: does not fit NETWORK_FILTER`},
		{"transport", ef("FILTER_CHAIN", "listener: {filterChain: {transportProtocol: ssl}}", "operation: REMOVE"),
			`~transportProtocol: matches nothing`},
		{"gateway name", ef("VIRTUAL_HOST", "context: GATEWAY, routeConfiguration: {gateway: a}", "operation: REMOVE"),
			`~gateway: matches nothing`},
		{"gateway of a sidecar", ef("VIRTUAL_HOST", "context: SIDECAR_OUTBOUND, routeConfiguration: {gateway: a/b}", "operation: REMOVE"),
			`~portName and gateway are not looked at on sidecars`},
		{"route of a virtual host", ef("VIRTUAL_HOST", "routeConfiguration: {vhost: {route: {name: a}}}", "operation: REMOVE"),
			`~vhost\.route: has no effect: it does not fit VIRTUAL_HOST`},
		{"operation", ef("ROUTE_CONFIGURATION", "", "operation: ADD, value: {name: a}"),
			`~operation: has no effect: ADD changes nothing of a ROUTE_CONFIGURATION`},
		{"replaced cluster", ef("CLUSTER", "", "operation: REPLACE, value: {name: a}"),
			`~operation: has no effect: REPLACE changes nothing of a CLUSTER`},
		{"filter class", ef("HTTP_FILTER", router, "operation: INSERT_BEFORE, filterClass: AUTHN, value: {"+lua+"}"),
			`~filterClass: has no effect`},
		{"filter class of an added filter", ef("HTTP_FILTER", "context: SIDECAR_INBOUND", "operation: ADD, filterClass: STATS, value: {"+lua+"}"),
			""},
		{"remove all filters", ef("HTTP_FILTER", "", "operation: REMOVE"),
			`~match: has no effect: it names no filter, and REMOVE needs one; name the filter: listener\.filterChain\.filter\.subFilter\.name`},
		{"remove with a value", ef("CLUSTER", "", "operation: REMOVE, value: {name: a}"), `~value: has no effect: REMOVE needs no value`},
		{"no value", ef("CLUSTER", "", "operation: MERGE"), `value: missing`},
		{"unknown field", ef("CLUSTER", "", "operation: MERGE, value: {conect_timeout: 1s}"),
			`~^f\.yaml:4: EnvoyFilter apps/server: spec\.configPatches\[0\]\.patch\.value\.conect_timeout: is left out: unknown field "conect_timeout"; did you mean "connectTimeout"`},
		{"unknown field in a packed message",
			ef("HTTP_FILTER", router, `operation: INSERT_BEFORE, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, code: a}}`), `~patch\.value\.typed_config\.code: is left out: unknown field "code"`},
		{"unknown type", ef("HTTP_FILTER", router,
			`operation: INSERT_BEFORE, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.config.filter.http.lua.v2.Lua}}`),
			`typed_config.*@type.*unknown type; did you mean envoy\.extensions\.filters\.http\.lua\.v3\.Lua or `},
		{"no type", ef("HTTP_FILTER", router, `operation: INSERT_BEFORE, value: {name: a, typed_config: {a: b}}`), `@type.*: missing`},
		{"unknown type in a typed struct",
			ef("HTTP_FILTER", router, `operation: INSERT_BEFORE, value: {name: a, typed_config: {"@type": type.googleapis.com/udpa.type.v1.TypedStruct, type_url: type.googleapis.com/stats.PluginConfig, value: {}}}`), `type_url: "type\.googleapis\.com/stats\.PluginConfig": unknown type`},
		{"wrong type", ef("CLUSTER", "", "operation: MERGE, value: {connect_timeout: 1}"), `connect_timeout: 1: expected a duration`},
		{"invalid", ef("CLUSTER", "", "operation: ADD, value: {name: a, connect_timeout: -1s}"),
			`value: invalid Cluster\.ConnectTimeout: value must be greater than 0s`},
		{"invalid packed", ef("NETWORK_FILTER", "",
			`operation: ADD, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, cluster: a}}`), `value: invalid TcpProxy\.StatPrefix`},
		{"selector and target", of("EnvoyFilter",
			"{workloadSelector: {}, targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: a}], configPatches: [{applyTo: CLUSTER, "+
				"patch: {operation: REMOVE}}]}"), `targetRefs: cannot be combined`},
		{"other target", of("EnvoyFilter",
			"{targetRefs: [{kind: Service, name: a}], configPatches: [{applyTo: CLUSTER, patch: {operation: REMOVE}}]}"),
			`~targetRefs\[0\]: has no effect: only a Gateway`},
		{"wildcard", of("EnvoyFilter", "{workloadSelector: {labels: {a: '*'}}, configPatches: [{applyTo: CLUSTER, patch: {operation: REMOVE}}]}"),
			`wildcards are not supported`},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkVerdict(t, c.yaml, c.want)
		})
	}
}
