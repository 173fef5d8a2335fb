package validate

import (
	"regexp"
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
		{"route", ef("HTTP_ROUTE", "routeConfiguration: {vhost: {name: 'a:80', route: {name: default, action: ROUTE}}}", "operation: MERGE, value: {route: {timeout: 1s}}"), ""},
		{"gateway route", ef("VIRTUAL_HOST", "context: GATEWAY, routeConfiguration: {gateway: a/b, portName: https, portNumber: 443}", "operation: MERGE, value: {include_request_attempt_count: true}"), ""},
		{"extension config", ef("EXTENSION_CONFIG", "context: ANY", "operation: ADD, value: {"+lua+"}"), ""},
		{"bootstrap", ef("BOOTSTRAP", "context: GATEWAY", "operation: MERGE, value: {stats_flush_interval: 7s}"), ""},
		{"replaced lists", ef("CLUSTER", "cluster: {}", "operation: MERGE_AND_REPLACE_LIST, value: {filters: []}"), ""},
		{"typed struct", ef("HTTP_FILTER", router, `operation: INSERT_BEFORE, value: {name: a, typed_config: {"@type": type.googleapis.com/udpa.type.v1.TypedStruct, type_url: type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, value: {default_source_code: {inline_string: a}}}}`), ""},
		{"proxy", ef("CLUSTER", "proxy: {proxyVersion: '^1\\.2', metadata: {A: b}}", "operation: MERGE, value: {connect_timeout: 1s}"), ""},
		{"selected", of("EnvoyFilter", "{priority: -10, workloadSelector: {labels: {a: b}}, configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 1s}}}]}"), ""},
		{"target", of("EnvoyFilter", "{targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: a}], configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 1s}}}]}"), ""},

		{"nothing", of("EnvoyFilter", "{}"), `spec\.configPatches: missing`},
		{"no applyTo", of("EnvoyFilter", "{configPatches: [{patch: {operation: ADD}}]}"), `configPatches\[0\]\.applyTo: missing`},
		{"no patch", of("EnvoyFilter", "{configPatches: [{applyTo: CLUSTER}]}"), `configPatches\[0\]\.patch: missing`},
		{"unknown field of a bootstrap", ef("BOOTSTRAP", "", "operation: MERGE, value: {a: b}"), `patch\.value\.a: unknown field`},
		{"added bootstrap", ef("BOOTSTRAP", "", "operation: ADD, value: {admin: {profile_path: /a}}"), `operation: "ADD": has no effect on BOOTSTRAP; use one of MERGE`},
		{"another node", ef("BOOTSTRAP", "", "operation: MERGE, value: {node: {id: a}}"), `patch\.value\.node: is the agent's`},
		{"another admin address", ef("BOOTSTRAP", "", "operation: MERGE, value: {admin: {address: {pipe: {path: /a}}}}"), `patch\.value\.admin\.address: is the agent's`},
		{"other sources", ef("BOOTSTRAP", "", "operation: MERGE, value: {dynamic_resources: {lds_config: {ads: {}}}}"), `patch\.value\.dynamic_resources: is the agent's`},
		{"wrong kind of match", ef("CLUSTER", "listener: {portNumber: 80}", "operation: REMOVE"), `match\.listener: does not fit CLUSTER; match by cluster`},
		{"match where none fits", ef("EXTENSION_CONFIG", "listener: {}", "operation: ADD, value: {"+lua+"}"), `match\.listener: does not fit EXTENSION_CONFIG; remove it`},
		{"waypoint match", ef("HTTP_FILTER", "waypoint: {portNumber: 80}", "operation: INSERT_FIRST, value: {"+lua+"}"), `match\.waypoint: `},
		{"waypoint", ef("CLUSTER", "context: WAYPOINT", "operation: REMOVE"), `context: "WAYPOINT": not supported`},
		{"version", ef("CLUSTER", "proxy: {proxyVersion: '('}", "operation: REMOVE"), `proxyVersion: "\(": not a regular expression`},
		{"port", ef("CLUSTER", "cluster: {portNumber: 70000}", "operation: REMOVE"), `cluster\.portNumber: 70000`},
		{"service", ef("CLUSTER", "cluster: {service: 'a..b'}", "operation: REMOVE"), `cluster\.service: "a\.\.b"`},
		{"cluster name and more", ef("CLUSTER", "cluster: {name: a, portNumber: 1}", "operation: REMOVE"), `cluster\.name: "a": stands alone`},
		{"port name", ef("LISTENER", "listener: {portName: a}", "operation: REMOVE"), `listener\.portName: matches nothing`},
		{"chain of a listener patch", ef("LISTENER", "listener: {filterChain: {name: a}}", "operation: REMOVE"), `filterChain: does not fit LISTENER`},
		{"filter without a name", ef("NETWORK_FILTER", "listener: {filterChain: {filter: {}}}", "operation: REMOVE"), `filter\.name: missing`},
		{"sub filter of a network filter", ef("NETWORK_FILTER", router, "operation: REMOVE"), `subFilter: does not fit NETWORK_FILTER`},
		{"transport", ef("FILTER_CHAIN", "listener: {filterChain: {transportProtocol: ssl}}", "operation: REMOVE"), `transportProtocol: "ssl": unknown`},
		{"gateway name", ef("VIRTUAL_HOST", "context: GATEWAY, routeConfiguration: {gateway: a}", "operation: REMOVE"), `gateway: "a": not namespace/name`},
		{"gateway of a sidecar", ef("VIRTUAL_HOST", "context: SIDECAR_OUTBOUND, routeConfiguration: {gateway: a/b}", "operation: REMOVE"), `portName and gateway match gateways only`},
		{"route of a virtual host", ef("VIRTUAL_HOST", "routeConfiguration: {vhost: {route: {name: a}}}", "operation: REMOVE"), `vhost\.route: does not fit VIRTUAL_HOST`},
		{"operation", ef("ROUTE_CONFIGURATION", "", "operation: ADD, value: {name: a}"), `operation: "ADD": has no effect on ROUTE_CONFIGURATION; use one of MERGE`},
		{"replaced cluster", ef("CLUSTER", "", "operation: REPLACE, value: {name: a}"), `operation: "REPLACE": has no effect on CLUSTER`},
		{"filter class", ef("HTTP_FILTER", router, "operation: INSERT_BEFORE, filterClass: AUTHN, value: {"+lua+"}"), `filterClass: "AUTHN": has no effect but with ADD`},
		{"filter class of an added filter", ef("HTTP_FILTER", "context: SIDECAR_INBOUND", "operation: ADD, filterClass: STATS, value: {"+lua+"}"), ""},
		{"remove all filters", ef("HTTP_FILTER", "", "operation: REMOVE"), `subFilter\.name: missing; name the HTTP filter to patch`},
		{"remove with a value", ef("CLUSTER", "", "operation: REMOVE, value: {name: a}"), `value: has no effect with REMOVE`},
		{"no value", ef("CLUSTER", "", "operation: MERGE"), `value: missing`},
		{"unknown field", ef("CLUSTER", "", "operation: MERGE, value: {conect_timeout: 1s}"), `^f\.yaml:4: EnvoyFilter apps/server: spec\.configPatches\[0\]\.patch\.value\.conect_timeout: unknown field "conect_timeout"; did you mean "connectTimeout"`},
		{"unknown field in a packed message", ef("HTTP_FILTER", router, `operation: INSERT_BEFORE, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, code: a}}`), `patch\.value\.typed_config\.code: unknown field "code"`},
		{"unknown type", ef("HTTP_FILTER", router, `operation: INSERT_BEFORE, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.config.filter.http.lua.v2.Lua}}`), `typed_config.*@type.*unknown type; did you mean envoy\.extensions\.filters\.http\.lua\.v3\.Lua or `},
		{"no type", ef("HTTP_FILTER", router, `operation: INSERT_BEFORE, value: {name: a, typed_config: {a: b}}`), `@type.*: missing`},
		{"unknown type in a typed struct", ef("HTTP_FILTER", router, `operation: INSERT_BEFORE, value: {name: a, typed_config: {"@type": type.googleapis.com/udpa.type.v1.TypedStruct, type_url: type.googleapis.com/stats.PluginConfig, value: {}}}`), `type_url: "type\.googleapis\.com/stats\.PluginConfig": unknown type`},
		{"wrong type", ef("CLUSTER", "", "operation: MERGE, value: {connect_timeout: 1}"), `connect_timeout: 1: expected a duration`},
		{"invalid", ef("CLUSTER", "", "operation: ADD, value: {name: a, connect_timeout: -1s}"), `value: invalid Cluster\.ConnectTimeout: value must be greater than 0s`},
		{"invalid packed", ef("NETWORK_FILTER", "", `operation: ADD, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, cluster: a}}`), `value: invalid TcpProxy\.StatPrefix`},
		{"selector and target", of("EnvoyFilter", "{workloadSelector: {}, targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: a}], configPatches: [{applyTo: CLUSTER, patch: {operation: REMOVE}}]}"), `targetRefs: cannot be combined`},
		{"other target", of("EnvoyFilter", "{targetRefs: [{kind: Service, name: a}], configPatches: [{applyTo: CLUSTER, patch: {operation: REMOVE}}]}"), `targetRefs\[0\]\.kind: "Service": not a target here`},
		{"wildcard", of("EnvoyFilter", "{workloadSelector: {labels: {a: '*'}}, configPatches: [{applyTo: CLUSTER, patch: {operation: REMOVE}}]}"), `wildcards are not supported`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, got := check(t, c.yaml)
			switch {
			case c.want == "" && got != "":
				t.Errorf("refused: %s", got)
			case c.want != "" && !regexp.MustCompile(c.want).MatchString(got):
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
