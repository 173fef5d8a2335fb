package patch_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	manager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate"
	"fairlead.dev/services/xds-server/internal/translate/bootstrap"
)

const web = "web.shop.svc.cluster.local"

// patchedMesh has a service with an HTTP and a TCP port, and a Gateway.
func patchedMesh(filters ...*configv1.Resource) []*configv1.Resource {
	return append([]*configv1.Resource{
		meshtest.Service("shop", web, 80, func(s *configv1.Service) {
			s.Addresses = []string{"10.96.0.1"}
			s.Ports = append(s.Ports, &configv1.ServicePort{Name: "tcp", Number: 3306, TargetPort: 3306, Protocol: configv1.Protocol_PROTOCOL_TCP})
		}),
		meshtest.Endpoints("shop", web, 80, "10.0.0.1"),
		meshtest.Config(mesh.KindDestinationRule, "shop", "web", &networking.DestinationRule{
			Host: web, Subsets: []*networking.Subset{{Name: "v1", Labels: map[string]string{"version": "v1"}}},
		}),
		meshtest.Config(mesh.KindGateway, "shop", "gw", &networking.Gateway{
			Selector: map[string]string{"istio": "gateway"},
			Servers: []*networking.Server{{
				Port: &networking.Port{Number: 8080, Name: "http", Protocol: "HTTP"}, Hosts: []string{"shop/*.example.com"},
			}},
		}),
		meshtest.Config(mesh.KindVirtualService, "shop", "web", &networking.VirtualService{
			Hosts: []string{"www.example.com"}, Gateways: []string{"shop/gw"},
			Http: []*networking.HTTPRoute{
				{Name: "all", Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: web}}}}},
		}),
	}, filters...)
}

func sidecar() *class.Key {
	return &class.Key{
		Type: class.Sidecar, Namespace: "shop", Interception: class.Redirect, TrustDomain: "cluster.local", DNSDomain: "shop.svc.cluster.local",
		Labels:  map[string]string{"app": "web"},
		Targets: []class.Target{{Hostname: web, Namespace: "shop", Port: 80, TargetPort: 8080, Protocol: int32(configv1.Protocol_PROTOCOL_HTTP)}},
	}
}

func router() *class.Key {
	return &class.Key{
		Type: class.Router, Namespace: "shop", Interception: class.Redirect, TrustDomain: "cluster.local", DNSDomain: "shop.svc.cluster.local",
		Labels: map[string]string{"istio": "gateway"},
	}
}

func discovered() *class.Key {
	k := sidecar()
	k.VirtualHosts = true
	return k
}

func onDemand() *class.Key {
	k := discovered()
	k.OnDemand = true
	return k
}

func translator(url string) plan.Translator {
	all := translate.All()
	return all[slices.IndexFunc(all, func(t plan.Translator) bool { return t.TypeURL() == url })]
}

// build builds a resource of a class.
func build(t testing.TB, key *class.Key, url, name string, filters ...*configv1.Resource) (proto.Message, error) {
	t.Helper()
	return translator(url).Build(input.NewView(key, meshtest.State(t, patchedMesh(filters...)...)).Reader(), name)
}

// text is the form in which tests compare resources.
func text(t testing.TB, m proto.Message) string {
	t.Helper()
	switch m := m.(type) {
	case nil:
		return "none"
	case *cluster.Cluster:
		return fmt.Sprint(m.GetName(), " ", m.GetConnectTimeout().AsDuration(), " ", m.GetPerConnectionBufferLimitBytes().GetValue(), " ",
			len(m.GetFilters()))
	case *core.TypedExtensionConfig:
		return m.GetName()
	case bootstrap.Resource:
		return fmt.Sprint(m.GetStatsFlushInterval().AsDuration(), " ", len(m.GetStatsSinks()))
	case *route.RouteConfiguration:
		return table(m)
	case *route.VirtualHost:
		return host(m)
	case *listener.Listener:
		var parts []string
		var filters []string
		for _, f := range m.GetListenerFilters() {
			filters = append(filters, short(f.GetName()))
		}
		parts = append(parts, "["+strings.Join(filters, " ")+"]")
		chains := m.GetFilterChains()
		if m.GetDefaultFilterChain() != nil {
			chains = append(slices.Clone(chains), m.GetDefaultFilterChain())
		}
		for _, c := range chains {
			parts = append(parts, chain(t, c))
		}
		if m.GetPerConnectionBufferLimitBytes() != nil {
			parts = append(parts, fmt.Sprint(m.GetPerConnectionBufferLimitBytes().GetValue()))
		}
		return strings.Join(parts, "\n")
	default:
		t.Fatalf("what is a %T?", m)
		return ""
	}
}

func short(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

func chain(t testing.TB, c *listener.FilterChain) string {
	t.Helper()
	out := c.GetName() + ":"
	if p := c.GetFilterChainMatch().GetTransportProtocol(); p == "tls" && c.GetFilterChainMatch().GetDestinationPort() != nil {
		out += " tls"
	}
	for _, f := range c.GetFilters() {
		out += " " + short(f.GetName())
		config := &manager.HttpConnectionManager{}
		if !f.GetTypedConfig().MessageIs(config) {
			continue
		}
		if err := f.GetTypedConfig().UnmarshalTo(config); err != nil {
			t.Fatal(err)
		}
		var inner []string
		for _, h := range config.GetHttpFilters() {
			inner = append(inner, short(h.GetName()))
		}
		out += "(" + strings.Join(inner, " ") + ")"
		if config.GetServerName() != "" && config.GetServerName() != "istio-envoy" {
			out += " server " + config.GetServerName()
		}
		if config.GetRouteConfig() != nil {
			out += " " + table(config.GetRouteConfig())
		}
	}
	return out
}

func table(m *route.RouteConfiguration) string {
	var hosts []string
	for _, h := range m.GetVirtualHosts() {
		hosts = append(hosts, host(h))
	}
	if len(m.GetRequestHeadersToRemove()) > 0 {
		hosts = append(hosts, "-"+strings.Join(m.GetRequestHeadersToRemove(), ","))
	}
	return strings.Join(hosts, "; ")
}

func host(h *route.VirtualHost) string {
	var routes []string
	for _, r := range h.GetRoutes() {
		n := r.GetName()
		if r.GetMatch().GetGrpc() != nil {
			n += fmt.Sprint("≤", r.GetRoute().GetMaxStreamDuration().GetGrpcTimeoutHeaderMax().AsDuration())
		}
		if r.GetDirectResponse() != nil {
			n += fmt.Sprint("=", r.GetDirectResponse().GetStatus())
		}
		if d := r.GetRoute().GetTimeout(); d.AsDuration() != 0 {
			n += fmt.Sprint("=", d.AsDuration())
		}
		routes = append(routes, n)
	}
	out := h.GetName() + "(" + strings.Join(routes, " ") + ")"
	if h.GetIncludeAttemptCountInResponse() {
		out += "+count"
	}
	return out
}

// differences lists the lines that differ.
func differences(before, after string) string {
	var out []string
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, line := range a {
		if !slices.Contains(b, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			out = append(out, "+ "+line)
		}
	}
	return strings.Join(out, "\n")
}

const (
	lua     = `{name: lua, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: "function envoy_on_request(h) end"}}}`
	limit   = `{name: limit, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit, stat_prefix: a, token_bucket: {max_tokens: 1, fill_interval: 1s}}}`
	proxyLF = `{name: proxy, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol}}`
	hcmName = "name: envoy.filters.network.http_connection_manager"
)

// filter is an EnvoyFilter with one patch.
func filter(applyTo, match, patch string) string {
	return "configPatches: [{applyTo: " + applyTo + ", match: {" + match + "}, patch: {" + patch + "}}]"
}

// sub matches an HTTP filter.
func sub(name string) string {
	return "listener: {filterChain: {filter: {" + hcmName + ", subFilter: {name: envoy.filters.http." + name + "}}}}"
}

// Every operation is applied to every kind of object, under matches that admit it and that do not.
func TestOperationsOnEveryObject(t *testing.T) {
	const (
		inbound  = "context: SIDECAR_INBOUND, "
		outbound = "context: SIDECAR_OUTBOUND, "
		gw       = "context: GATEWAY, "
		onPort   = inbound + "listener: {portNumber: 8080"
	)
	vin := func(patch string) testCase {
		return testCase{key: sidecar, url: resource.ListenerType, name: "virtualInbound", spec: patch}
	}
	tcp := func(patch string) testCase {
		return testCase{key: sidecar, url: resource.ListenerType, name: "10.96.0.1_3306", spec: patch}
	}
	cds := func(patch string) testCase {
		return testCase{key: sidecar, url: resource.ClusterType, name: "outbound|80||" + web, spec: patch}
	}
	rds := func(patch string) testCase {
		return testCase{key: sidecar, url: resource.RouteType, name: "80", spec: patch}
	}
	gateway := func(patch string) testCase {
		return testCase{key: router, url: resource.RouteType, name: "http.8080", spec: patch}
	}
	vhds := func(patch string) testCase {
		return testCase{key: discovered, url: resource.VirtualHostType, name: "80/" + web + ":80", spec: patch}
	}
	start := func(patch string) testCase {
		return testCase{key: sidecar, url: bootstrap.TypeURL, name: bootstrap.Name, spec: patch}
	}
	add := "operation: ADD, value: "
	merge := "operation: MERGE, value: "
	remove := "operation: REMOVE"
	for name, c := range map[string]testCase{
		"cluster: merge": cds(filter("CLUSTER", "", merge+"{connect_timeout: 3.5s}")).gives("3.5s 0 0"),
		"cluster: merge by port": cds(filter("CLUSTER", outbound+"cluster: {portNumber: 80}", merge+"{connect_timeout: 3s}")).gives(
			"3s 0 0"),
		"cluster: merge by service": cds(filter("CLUSTER", outbound+"cluster: {service: "+web+"}",
			merge+"{connect_timeout: 3s}")).gives("3s 0 0"),
		"cluster: merge by name": cds(filter("CLUSTER", outbound+"cluster: {name: 'outbound|80||"+web+"'}",
			merge+"{connect_timeout: 3s}")).gives("3s 0 0"),
		"cluster: another port":    cds(filter("CLUSTER", "cluster: {portNumber: 81}", merge+"{connect_timeout: 3s}")).same(),
		"cluster: another service": cds(filter("CLUSTER", "cluster: {service: a.b}", merge+"{connect_timeout: 3s}")).same(),
		"cluster: another subset":  cds(filter("CLUSTER", "cluster: {subset: v1}", merge+"{connect_timeout: 3s}")).same(),
		"cluster: another name":    cds(filter("CLUSTER", "cluster: {name: a}", merge+"{connect_timeout: 3s}")).same(),
		"cluster: another side":    cds(filter("CLUSTER", inbound, merge+"{connect_timeout: 3s}")).same(),
		"cluster: gateways":        cds(filter("CLUSTER", gw, merge+"{connect_timeout: 3s}")).same(),
		"cluster: another version": cds(filter("CLUSTER", "proxy: {proxyVersion: '^9'}", merge+"{connect_timeout: 3s}")).same(),
		"cluster: remove":          cds(filter("CLUSTER", "cluster: {service: "+web+"}", remove)).gives("none"),
		"cluster: add of a name that is": cds(filter("CLUSTER", "", add+"{name: 'outbound|80||"+web+"', connect_timeout: 1s}")).rejected(
			"already"),
		"cluster: broken":          cds(filter("CLUSTER", "", merge+"{connect_timeout: -1s}")).rejected("ConnectTimeout"),
		"cluster: renamed":         cds(filter("CLUSTER", "", merge+"{name: a}")).rejected(`name "a" is in the place of`),
		"cluster: of another type": cds(filter("CLUSTER", "", merge+"{type: STATIC}")).rejected("edsClusterConfig"),
		"inbound cluster": {key: sidecar, url: resource.ClusterType, name: "inbound|8080||",
			spec: filter("CLUSTER", inbound+"cluster: {portNumber: 8080, service: whatever}", merge+"{connect_timeout: 3s}"),
			want: "inbound|8080|| 3s 0 0"},
		"passthrough cluster": {key: sidecar, url: resource.ClusterType, name: "PassthroughCluster",
			spec: filter("CLUSTER", outbound+"cluster: {name: PassthroughCluster}", merge+"{connect_timeout: 3s}"),
			want: "PassthroughCluster 3s 0 0"},
		"cluster on demand: remove": {key: onDemand, url: resource.ClusterType, name: "outbound|80||" + web,
			spec: filter("CLUSTER", "cluster: {service: "+web+"}", remove), want: "="},
		"cluster of a gateway": {key: router, url: resource.ClusterType, name: "outbound|80||" + web,
			spec: filter("CLUSTER", gw, merge+"{connect_timeout: 3s}"), want: "outbound|80||" + web + " 3s 0 0"},
		"bootstrap of a sidecar": start(
			filter("BOOTSTRAP", outbound, merge+"{stats_flush_interval: 7.5s, stats_sinks: [{name: a}]}")).gives("7.5s 1"),
		"bootstrap of any proxy": start(filter("BOOTSTRAP", "", merge+"{stats_flush_interval: 7s}")).gives("7s 0"),
		"bootstrap of a gateway": {key: router, url: bootstrap.TypeURL, name: bootstrap.Name,
			spec: filter("BOOTSTRAP", gw, merge+"{stats_flush_interval: 7s}"), want: "7s 0"},
		"bootstrap of gateways": start(filter("BOOTSTRAP", gw, merge+"{stats_flush_interval: 7s}")).same(),
		"bootstrap: broken":     start(filter("BOOTSTRAP", "", merge+"{stats_flush_interval: 0s}")).rejected("StatsFlush"),
		"listener: merge": vin(filter("LISTENER", inbound+"listener: {name: virtualInbound}",
			merge+"{per_connection_buffer_limit_bytes: 7}")).gives("7"),
		"listener: by port": vin(filter("LISTENER", "listener: {portNumber: 15006}",
			merge+"{per_connection_buffer_limit_bytes: 7}")).gives("7"),
		"listener: another port": vin(filter("LISTENER", "listener: {portNumber: 8080}",
			merge+"{per_connection_buffer_limit_bytes: 7}")).same(),
		"listener: another name": vin(filter("LISTENER", "listener: {name: virtualOutbound}",
			merge+"{per_connection_buffer_limit_bytes: 7}")).same(),
		"listener: remove":                tcp(filter("LISTENER", outbound+"listener: {portNumber: 3306}", remove)).gives("none"),
		"listener: add of a name that is": tcp(filter("LISTENER", "", add+"{name: 10.96.0.1_3306}")).rejected("already"),
		"listener filter: add":            tcp(filter("LISTENER_FILTER", "", add+proxyLF)).has("[proxy]"),
		"listener filter: first": vin(filter("LISTENER_FILTER", "", "operation: INSERT_FIRST, value: "+proxyLF)).has(
			"[proxy original_dst tls_inspector http_inspector]"),
		"listener filter: first if": vin(filter("LISTENER_FILTER", "listener: {listenerFilter: none}",
			"operation: INSERT_FIRST, value: "+proxyLF)).same(),
		"listener filter: before": vin(filter("LISTENER_FILTER", "listener: {listenerFilter: envoy.filters.listener.tls_inspector}",
			"operation: INSERT_BEFORE, value: "+proxyLF)).has("[original_dst proxy tls_inspector http_inspector]"),
		"listener filter: after": vin(filter("LISTENER_FILTER", "listener: {listenerFilter: envoy.filters.listener.tls_inspector}",
			"operation: INSERT_AFTER, value: "+proxyLF)).has("[original_dst tls_inspector proxy http_inspector]"),
		"listener filter: replace": vin(filter("LISTENER_FILTER", "listener: {listenerFilter: envoy.filters.listener.tls_inspector}",
			"operation: REPLACE, value: "+proxyLF)).has("[original_dst proxy http_inspector]"),
		"listener filter: remove": vin(filter("LISTENER_FILTER", "listener: {listenerFilter: envoy.filters.listener.tls_inspector}",
			remove)).has("[original_dst http_inspector]"),
		"chain: merge by port": vin(filter("FILTER_CHAIN", onPort+"}", merge+"{name: mine}")).has("mine: http_connection_manager"),
		"chain: by name": vin(filter("FILTER_CHAIN", inbound+"listener: {filterChain: {name: virtualInbound-blackhole}}",
			merge+"{name: mine}")).has("mine: tcp_proxy"),
		"chain: remove by transport": vin(filter("FILTER_CHAIN", onPort+", filterChain: {transportProtocol: tls}}", remove)).lacks(
			"0.0.0.0_8080: tls"),
		"chain: by protocols": vin(
			filter("FILTER_CHAIN", inbound+
				"listener: {filterChain: {applicationProtocols: 'h2c, http/1.1', destinationPort: 0, transportProtocol: raw_buffer}}",
				merge+"{name: mine}")).has("mine: http_connection_manager"),
		"chain: another sni": vin(filter("FILTER_CHAIN", inbound+"listener: {filterChain: {sni: a.b}}", remove)).same(),
		"chain: by destination port": vin(filter("FILTER_CHAIN", inbound+"listener: {filterChain: {destinationPort: 8080}}",
			merge+"{name: mine}")).has("mine: http_connection_manager"),
		"chain: add": tcp(filter("FILTER_CHAIN", "listener: {portNumber: 3306}",
			add+`{name: mine, filter_chain_match: {transport_protocol: tls}, filters: [{name: tcp, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: a, cluster: a}}]}`)).has("mine: tcp"),
		"chain: add of the same match": vin(
			filter("FILTER_CHAIN", inbound,
				add+`{name: mine, filter_chain_match: {destination_port: 15006}, filters: [{name: tcp, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: a, cluster: a}}]}`)).rejected("has the match of one before it"),
		"chain: remove all":   tcp(filter("FILTER_CHAIN", "", remove)).rejected("no filter chain left"),
		"network filter: add": tcp(filter("NETWORK_FILTER", "listener: {portNumber: 3306}", add+limit)).has("limit tcp_proxy"),
		"network filter: first": tcp(filter("NETWORK_FILTER", outbound, "operation: INSERT_FIRST, value: "+limit)).has(
			"limit tcp_proxy"),
		"network filter: before": tcp(
			filter("NETWORK_FILTER", "listener: {filterChain: {filter: {name: envoy.filters.network.tcp_proxy}}}",
				"operation: INSERT_BEFORE, value: "+limit)).has("limit tcp_proxy"),
		"network filter: before none": tcp(filter("NETWORK_FILTER", "listener: {filterChain: {filter: {name: none}}}",
			"operation: INSERT_BEFORE, value: "+limit)).same(),
		"network filter: after": tcp(
			filter("NETWORK_FILTER", "listener: {filterChain: {filter: {name: envoy.filters.network.tcp_proxy}}}",
				"operation: INSERT_AFTER, value: "+limit)).rejected("has to be the last one"),
		"network filter: merge": vin(filter("NETWORK_FILTER", inbound+"listener: {filterChain: {filter: {"+hcmName+"}}}",
			merge+`{typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, server_name: mine}}`)).has("server mine"),
		"network filter: replace": tcp(
			filter("NETWORK_FILTER", "listener: {filterChain: {filter: {name: envoy.filters.network.tcp_proxy}}}",
				`operation: REPLACE, value: {name: echo, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}`)).
			has(": echo"),
		"network filter: remove": tcp(
			filter("NETWORK_FILTER", "listener: {filterChain: {filter: {name: envoy.filters.network.tcp_proxy}}}", remove)).has("\n:"),
		"http filter: add": vin(filter("HTTP_FILTER", inbound, add+lua)).has("(grpc_stats fault cors lua router)"),
		"http filter: first": vin(filter("HTTP_FILTER", onPort+", filterChain: {filter: {"+hcmName+"}}}",
			"operation: INSERT_FIRST, value: "+lua)).has("(lua grpc_stats fault cors router)"),
		"http filter: before": vin(filter("HTTP_FILTER", inbound+sub("router"), "operation: INSERT_BEFORE, value: "+lua)).has(
			"(grpc_stats fault cors lua router)"),
		"http filter: before any": vin(filter("HTTP_FILTER", inbound, "operation: INSERT_BEFORE, value: "+lua)).has(
			"(lua grpc_stats fault cors router)"),
		"http filter: after": vin(filter("HTTP_FILTER", inbound+sub("fault"), "operation: INSERT_AFTER, value: "+lua)).has(
			"(grpc_stats fault lua cors router)"),
		"http filter: after none": vin(filter("HTTP_FILTER", inbound+sub("none"), "operation: INSERT_AFTER, value: "+lua)).same(),
		"http filter: after the router": vin(filter("HTTP_FILTER", inbound+sub("router"), "operation: INSERT_AFTER, value: "+lua)).rejected(
			"has to be the last one"),
		"http filter: replace": vin(filter("HTTP_FILTER", inbound+sub("cors"), "operation: REPLACE, value: "+lua)).has(
			"(grpc_stats fault lua router)"),
		"http filter: remove":            vin(filter("HTTP_FILTER", inbound+sub("cors"), remove)).has("(grpc_stats fault router)"),
		"http filter: remove the router": vin(filter("HTTP_FILTER", inbound+sub("router"), remove)).rejected("passes nothing on"),
		"http filter: another manager":   vin(filter("HTTP_FILTER", "listener: {filterChain: {filter: {name: other}}}", add+lua)).same(),
		"http filter: outbound":          vin(filter("HTTP_FILTER", outbound, add+lua)).same(),
		"inbound route configuration": vin(filter("ROUTE_CONFIGURATION", inbound+"routeConfiguration: {portNumber: 8080}",
			merge+"{request_headers_to_remove: [x]}")).has("inbound|http|80(default); -x"),
		"inbound virtual host": vin(filter("VIRTUAL_HOST", inbound+"routeConfiguration: {vhost: {name: 'inbound|http|80'}}",
			merge+"{include_attempt_count_in_response: true}")).has("inbound|http|80(default)+count"),
		"inbound virtual host, workload port": vin(filter("VIRTUAL_HOST", inbound+"routeConfiguration: {vhost: {name: 'inbound|http|8080'}}",
			merge+"{include_attempt_count_in_response: true}")).has("inbound|http|80(default)+count"),
		"inbound route": vin(filter("HTTP_ROUTE", inbound+"routeConfiguration: {vhost: {route: {name: default}}}",
			merge+"{route: {timeout: 3s}}")).has("inbound|http|80(default≤3s=3s default=3s)"),
		"routes: merge": rds(filter("ROUTE_CONFIGURATION", outbound+"routeConfiguration: {name: '80', portNumber: 80}",
			merge+"{request_headers_to_remove: [x]}")).has("-x"),
		"routes: another name": rds(filter("ROUTE_CONFIGURATION", "routeConfiguration: {name: '81'}",
			merge+"{request_headers_to_remove: [x]}")).same(),
		"routes: another port": rds(filter("ROUTE_CONFIGURATION", "routeConfiguration: {portNumber: 81}",
			merge+"{request_headers_to_remove: [x]}")).same(),
		"routes: inbound": rds(filter("ROUTE_CONFIGURATION", inbound, merge+"{request_headers_to_remove: [x]}")).same(),
		"virtual host: merge": rds(filter("VIRTUAL_HOST", "routeConfiguration: {vhost: {name: '"+web+":80'}}",
			merge+"{include_attempt_count_in_response: true}")).has(web + ":80(default)+count"),
		"virtual host: by domain": rds(filter("VIRTUAL_HOST", "routeConfiguration: {vhost: {domainName: web}}",
			merge+"{include_attempt_count_in_response: true}")).has(web + ":80(default)+count"),
		"virtual host: another domain": rds(filter("VIRTUAL_HOST", "routeConfiguration: {vhost: {domainName: wob}}",
			merge+"{include_attempt_count_in_response: true}")).same(),
		"virtual host: add": rds(filter("VIRTUAL_HOST", "routeConfiguration: {portNumber: 80}",
			add+"{name: mine, domains: [mine.com]}")).has("mine()"),
		"virtual host: add of a domain": rds(filter("VIRTUAL_HOST", "", add+"{name: mine, domains: [WEB]}")).rejected(`domain "web"`),
		"virtual host: remove":          rds(filter("VIRTUAL_HOST", "routeConfiguration: {vhost: {domainName: web}}", remove)).lacks(web),
		"route: merge": rds(
			filter("HTTP_ROUTE", "routeConfiguration: {vhost: {name: '"+web+":80', route: {name: default}}}", merge+"{route: {timeout: 3s}}")).has(
			"(default≤3s=3s default=3s)"),
		"route: merge by action": rds(
			filter("HTTP_ROUTE", "routeConfiguration: {vhost: {name: '"+web+":80', route: {action: ROUTE}}}", merge+"{route: {timeout: 3s}}")).has(
			"default=3s"),
		"route: another action": rds(
			filter("HTTP_ROUTE", "routeConfiguration: {vhost: {name: '"+web+":80', route: {action: REDIRECT}}}",
				merge+"{route: {timeout: 3s}}")).same(),
		"route: first": rds(filter("HTTP_ROUTE", "routeConfiguration: {vhost: {name: '"+web+":80'}}",
			"operation: INSERT_FIRST, value: {name: r, match: {prefix: /}, direct_response: {status: 418}}")).has("(r=418 default)"),
		"route: after": rds(
			filter("HTTP_ROUTE", "routeConfiguration: {vhost: {name: '"+web+":80', route: {name: default}}}",
				"operation: INSERT_AFTER, value: {name: r, match: {prefix: /}, direct_response: {status: 418}}")).has("(default r=418)"),
		"route: add": rds(filter("HTTP_ROUTE", "routeConfiguration: {vhost: {name: '"+web+":80'}}",
			add+"{name: r, match: {prefix: /}, direct_response: {status: 418}}")).has("(default r=418)"),
		"route: remove": rds(filter("HTTP_ROUTE", "routeConfiguration: {vhost: {name: '"+web+":80'}}", remove)).has(web +
			":80()"),
		"gateway: by gateway": gateway(
			filter("HTTP_ROUTE", gw+"routeConfiguration: {gateway: shop/gw, portName: http, portNumber: 8080}", merge+"{route: {timeout: 3s}}")).has(
			"all=3s"),
		"gateway: another gateway": gateway(filter("HTTP_ROUTE", gw+"routeConfiguration: {gateway: shop/other}",
			merge+"{route: {timeout: 3s}}")).same(),
		"gateway: another port name": gateway(filter("HTTP_ROUTE", gw+"routeConfiguration: {portName: https}",
			merge+"{route: {timeout: 3s}}")).same(),
		"gateway listener": {key: router, url: resource.ListenerType, name: "0.0.0.0_8080",
			spec: filter("HTTP_FILTER", gw+"listener: {portNumber: 8080}", add+lua), want: "lua router"},
		"virtual host resource: merge": vhds(filter("VIRTUAL_HOST", "routeConfiguration: {portNumber: 80, vhost: {name: '"+web+":80'}}",
			merge+"{include_attempt_count_in_response: true}")).has("+count"),
		"virtual host resource: other table": vhds(filter("VIRTUAL_HOST", "routeConfiguration: {portNumber: 81}",
			merge+"{include_attempt_count_in_response: true}")).same(),
		"virtual host resource: remove": vhds(filter("VIRTUAL_HOST", "routeConfiguration: {vhost: {domainName: web}}", remove)).gives(
			"none"),
		"virtual host resource: route": vhds(filter("HTTP_ROUTE", outbound+"routeConfiguration: {vhost: {route: {name: default}}}",
			merge+"{route: {timeout: 3s}}")).has("(default≤3s=3s default=3s)"),
		"virtual host resource: domains": vhds(filter("VIRTUAL_HOST", "", merge+"{domains: [a]}")).rejected("domains cannot be patched"),
		"virtual host among resources": {key: discovered, url: resource.RouteType, name: "80",
			spec: filter("VIRTUAL_HOST", "", add+"{name: mine, domains: [mine.com]}"), want: "="},
		"name of a resource": vhds(filter("VIRTUAL_HOST", "", add+"{name: '"+web+":80', domains: [a.b]}")).rejected("already"),
		"on demand: by its full name": {key: onDemand, url: resource.VirtualHostType, name: "80/web:80",
			spec: filter("VIRTUAL_HOST", "routeConfiguration: {vhost: {name: '"+web+":80'}}", merge+"{include_attempt_count_in_response: true}"),
			want: "+count"},
		"on demand: removed": {key: onDemand, url: resource.VirtualHostType, name: "80/web",
			spec: filter("VIRTUAL_HOST", "routeConfiguration: {vhost: {name: '"+web+":80'}}", remove), want: "80/web(allow_any_connect allow_any)"},
		"on demand: added": {key: onDemand, url: resource.VirtualHostType, name: "80/a.mine.com:80",
			spec: filter("VIRTUAL_HOST", "",
				add+"{name: mine, domains: ['*.mine.com'], routes: [{name: r, match: {prefix: /}, direct_response: {status: 418}}]}"),
			want: "80/a.mine.com:80(r=418)"},
		"on demand: added elsewhere": {key: onDemand, url: resource.VirtualHostType, name: "80/a.other.com:80",
			spec: filter("VIRTUAL_HOST", "", add+"{name: mine, domains: ['*.mine.com']}"), want: "="},
		"on demand: added to the table": {key: onDemand, url: resource.RouteType, name: "80",
			spec: filter("VIRTUAL_HOST", "", add+"{name: mine, domains: [mine.com]}"), want: "="},
	} {
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}

type testCase struct {
	key             func() *class.Key
	url, name, spec string
	// want is part of what the patch adds, "=" for no difference; lack is part of what it removes.
	want, lack string
	// rejection is part of the error that leaves the resource as it is.
	rejection string
}

func (c testCase) gives(want string) testCase   { c.want = want; return c }
func (c testCase) has(want string) testCase     { return c.gives(want) }
func (c testCase) same(...string) testCase      { return c.gives("=") }
func (c testCase) lacks(lack string) testCase   { c.lack = lack; return c }
func (c testCase) rejected(why string) testCase { c.rejection = why; return c }

func (c testCase) run(t *testing.T) {
	base, err := build(t, c.key(), c.url, c.name)
	if base == nil || err != nil {
		t.Fatalf("%v, %v without a filter", base, err)
	}
	got, err := build(t, c.key(), c.url, c.name, meshtest.EnvoyFilter("shop", "f", c.spec))
	if c.rejection != "" {
		if _, ok := errors.AsType[*plan.Incomplete](err); !ok || !strings.Contains(err.Error(), c.rejection) ||
			!strings.Contains(err.Error(), "EnvoyFilter shop/f") {
			t.Errorf("error %v, want %s", err, c.rejection)
		}
		if !proto.Equal(got, base) {
			t.Errorf("changed by what was rejected:\n%s", text(t, got))
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	before, after := text(t, base), text(t, got)
	diff := differences(before, after)
	switch {
	case c.want == "=" && diff != "":
		t.Errorf("changed:\n%s", diff)
	case c.lack != "" && strings.Contains(after, c.lack):
		t.Errorf("still there:\n%s", after)
	case c.want != "=" && (diff == "" || !strings.Contains(after, c.want)):
		t.Errorf("got\n%s\nwant %q in\n%s", diff, c.want, after)
	}
}
