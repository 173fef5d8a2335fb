package patch_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"fairlead.dev/pkg/envoyapi"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/bootstrap"
)

const (
	anyTCP    = `{name: tcp, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: a, cluster: a}}`
	anyRouter = `{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}`
	anyHCM    = `{typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: x, route_config: {virtual_hosts: [{name: a, domains: ['*']}]}}}`
)

// values of each kind of patch: some complete, some partial, some that break what they are merged into.
var values = map[networking.EnvoyFilter_ApplyTo][]string{
	networking.EnvoyFilter_LISTENER: {
		"{name: mine}", "{name: virtualInbound}", "{per_connection_buffer_limit_bytes: 7}",
		"{address: {socket_address: {address: 0.0.0.0, port_value: 99999}}}",
		"{filter_chains: [{}]}", "{default_filter_chain: {filters: [" + anyTCP + "]}}", "{traffic_direction: INBOUND}",
		"{filter_chains: [{filters: [" + anyHCM + "]}]}",
		"{name: mine, address: {socket_address: {address: 127.0.0.1, port_value: 7}}, filter_chains: [{filters: [" + anyTCP + "]}]}",
	},
	networking.EnvoyFilter_FILTER_CHAIN: {"{name: mine}", "{filter_chain_match: {destination_port: 0}}",
		"{filter_chain_match: {server_names: ['']}}", "{filters: [" + anyTCP + "]}", "{filters: [" + limit + "]}"},
	networking.EnvoyFilter_NETWORK_FILTER: {limit, anyTCP, anyHCM, "{name: a}",
		"{typed_config: {'@type': type.googleapis.com/google.protobuf.Empty, value: {}}}"},
	networking.EnvoyFilter_HTTP_FILTER: {lua, anyRouter, "{name: ''}",
		"{name: mine, config_discovery: {config_source: {ads: {}}, type_urls: [a]}}", "{is_optional: true}"},
	networking.EnvoyFilter_LISTENER_FILTER: {proxyLF, "{name: a}", "{filter_disabled: {any_match: false}}"},
	networking.EnvoyFilter_ROUTE_CONFIGURATION: {
		"{request_headers_to_remove: [x]}", "{request_headers_to_remove: ['a\\nb']}", "{name: other}",
		"{virtual_hosts: [{name: a, domains: ['*']}]}", "{max_direct_response_body_size_bytes: 1}",
	},
	networking.EnvoyFilter_VIRTUAL_HOST: {"{name: mine, domains: [mine.com]}", "{name: mine, domains: ['*']}", "{domains: [web]}", "{name: x}",
		"{include_request_attempt_count: true}", "{retry_policy: {retry_back_off: {}}}"},
	networking.EnvoyFilter_HTTP_ROUTE: {"{route: {timeout: 3s}}", "{route: {timeout: -3s}}",
		"{name: r, match: {prefix: /}, direct_response: {status: 418}}", "{redirect: {https_redirect: true}}",
		"{match: {safe_regex: {regex: ''}}}"},
	networking.EnvoyFilter_CLUSTER: {
		"{connect_timeout: 3s}", "{connect_timeout: 0s}", "{name: mine, type: STATIC}", "{name: 'inbound|8080||'}",
		"{lb_policy: CLUSTER_PROVIDED}", "{type: EDS}",
		"{transport_socket: {name: tls, typed_config: {'@type': " +
			"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, sni: a}}}", "{cluster_type: {name: ''}}",
	},
	networking.EnvoyFilter_BOOTSTRAP: {"{stats_flush_interval: 7s}", "{stats_flush_interval: 0s}",
		"{static_resources: {clusters: [{name: mine}]}}", "{admin: {profile_path: a}}"},
	networking.EnvoyFilter_EXTENSION_CONFIG: {lua, "{name: a}",
		"{typed_config: {'@type': type.googleapis.com/google.protobuf.Empty, value: {}}}"},
}

// matches of each kind of object.
var (
	listenerMatches = []string{
		"{}", "listener: {portNumber: 8080}", "listener: {portNumber: 3306}", "listener: {name: virtualInbound}",
		"listener: {listenerFilter: envoy.filters.listener.tls_inspector}",
		"listener: {filterChain: {name: virtualInbound, transportProtocol: tls}}", "listener: {filterChain: {filter: {" + hcmName + "}}}",
		"listener: {filterChain: {filter: {name: envoy.filters.network.tcp_proxy}}}",
		sub("router"), sub("cors"), sub("none"),
	}
	routeMatches = []string{
		"{}", "routeConfiguration: {portNumber: 80}", "routeConfiguration: {gateway: shop/gw}", "routeConfiguration: {vhost: {domainName: web}}",
		"routeConfiguration: {vhost: {name: '" + web + ":80', route: {name: default}}}",
		"routeConfiguration: {vhost: {route: {action: REDIRECT}}}",
	}
	clusterMatches = []string{"{}", "cluster: {portNumber: 80}", "cluster: {service: " + web + "}", "cluster: {name: PassthroughCluster}",
		"cluster: {name: 'outbound|80||" + web + "'}"}
)

func drawPatch(t *rapid.T) string {
	applyTo := rapid.SampledFrom([]networking.EnvoyFilter_ApplyTo{
		networking.EnvoyFilter_LISTENER, networking.EnvoyFilter_FILTER_CHAIN, networking.EnvoyFilter_NETWORK_FILTER,
		networking.EnvoyFilter_HTTP_FILTER,
		networking.EnvoyFilter_LISTENER_FILTER, networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST,
		networking.EnvoyFilter_HTTP_ROUTE, networking.EnvoyFilter_CLUSTER, networking.EnvoyFilter_EXTENSION_CONFIG,
		networking.EnvoyFilter_BOOTSTRAP,
	}).Draw(t, "applyTo")
	matches := listenerMatches
	switch applyTo {
	case networking.EnvoyFilter_CLUSTER:
		matches = clusterMatches
	case networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE:
		matches = routeMatches
	case networking.EnvoyFilter_EXTENSION_CONFIG, networking.EnvoyFilter_BOOTSTRAP:
		matches = matches[:1]
	}
	match := strings.Trim(rapid.SampledFrom(matches).Draw(t, "match"), "{}")
	if strings.Count(match, "{") > strings.Count(match, "}") {
		match += strings.Repeat("}", strings.Count(match, "{")-strings.Count(match, "}"))
	}
	side := rapid.SampledFrom([]string{"ANY", "ANY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND", "GATEWAY"}).Draw(t, "context")
	op := rapid.SampledFrom([]string{"MERGE", "MERGE_AND_REPLACE_LIST", "ADD", "REMOVE", "INSERT_BEFORE", "INSERT_AFTER", "INSERT_FIRST",
		"REPLACE"}).Draw(t, "operation")
	value := rapid.SampledFrom(values[applyTo]).Draw(t, "value")
	if match != "" {
		match = ", " + match
	}
	return fmt.Sprintf("{applyTo: %s, match: {context: %s%s}, patch: {operation: %s, value: %s}}", applyTo, side, match, op, value)
}

// Whatever the patches, a resource is built and passes validation; patches that are left out are named.
func TestRandomPatchesLeaveValidResources(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var filters []*configv1.Resource
		for i := range rapid.IntRange(1, 3).Draw(t, "filters") {
			var patches []string
			for range rapid.IntRange(1, 3).Draw(t, "patches") {
				patches = append(patches, drawPatch(t))
			}
			filters = append(filters, meshtest.EnvoyFilter(rapid.SampledFrom([]string{"shop", "istio-system"}).Draw(t, "namespace"),
				fmt.Sprint("f", i),
				"configPatches: ["+strings.Join(patches, ", ")+"]"))
		}
		state, err := mesh.FromResources(patchedMesh(filters...))
		if err != nil {
			t.Fatal(err)
		}
		key := rapid.SampledFrom([]func() *class.Key{sidecar, router, discovered, onDemand}).Draw(t, "class")()
		r := input.NewView(key, state).Reader()
		for _, url := range []string{resource.ClusterType, resource.ListenerType, resource.RouteType, resource.VirtualHostType,
			resource.ExtensionConfigType, bootstrap.TypeURL} {
			names, err := plan.List(translator(url), key, state)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, "80", "http.8080", "80/web", "80/mine.com", "outbound|80||"+web, "mine")
			slices.Sort(names)
			for _, name := range slices.Compact(names) {
				m, err := translator(url).Build(r, name)
				if _, ok := errors.AsType[*plan.Incomplete](err); err != nil &&
					(!ok || !strings.Contains(err.Error(), "EnvoyFilter shop/f") && !strings.Contains(err.Error(), "EnvoyFilter istio-system/f")) {
					t.Fatalf("%s %q: %v", url, name, err)
				}
				if err != nil && strings.Contains(err.Error(), "panicked") {
					t.Fatalf("%s %q: %v", url, name, err)
				}
				if m == nil {
					continue
				}
				if got := cache.GetResourceName(m); got != name {
					t.Fatalf("%s %q is called %q", url, name, got)
				}
				if err := envoyapi.Validate(m); err != nil {
					t.Fatalf("%s %q: %v", url, name, err)
				}
			}
		}
	})
}
