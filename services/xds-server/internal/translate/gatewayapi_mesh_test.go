package translate_test

import (
	"slices"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate"
	"fairlead.dev/services/xds-server/internal/translate/listener"
	"fairlead.dev/services/xds-server/internal/translate/route"
)

const meshRoutes = "testdata/in/gateway-api-mesh.yaml"

// Clients are routed by the routes of their own namespace alone, or else by those for all; by a VirtualService before
// both; on the ports that the routes are for.
func TestRoutesOfServices(t *testing.T) {
	for _, tc := range []struct{ namespace, config, host, want string }{
		{"default", "80", "shop.default.svc.cluster.local:80", "/v2"},
		{"third", "80", "shop.default.svc.cluster.local:80", "/v2"},
		{"another", "80", "shop.default.svc.cluster.local:80", "418"},
		{"another", "8080", "shop.default.svc.cluster.local:8080", "418"},
		{"default", "8080", "shop.default.svc.cluster.local:8080", "default"},
		{"default", "80", "beta.default.svc.cluster.local:80", "default"},
		{"default", "80", "old.default.svc.cluster.local:80", "204"},
		{"default", "sniffed.default.svc.cluster.local:81", "sniffed.default.svc.cluster.local:81", "/v2"},
		// By the address of the service, whatever the request's host.
		{"default", "shop.default.svc.cluster.local:80", "shop.default.svc.cluster.local:80", "/v2"},
		{"another", "shop.default.svc.cluster.local:8080", "shop.default.svc.cluster.local:8080", "418"},
		{"default", "shop.default.svc.cluster.local:8080", "", ""},
		{"default", "beta.default.svc.cluster.local:80", "", ""},
	} {
		w := load(t, meshRoutes)
		w.key.Namespace, w.key.DNSDomain = tc.namespace, tc.namespace+".svc.cluster.local"
		m, err := route.Translator{}.Build(w.reader(), tc.config)
		if err != nil {
			t.Fatal(err)
		}
		if tc.want == "" {
			if m != nil {
				t.Errorf("%+v: got %v", tc, m)
			}
			continue
		}
		got := ""
		for _, host := range m.(*routev3.RouteConfiguration).GetVirtualHosts() {
			if host.GetName() == tc.host {
				got = describe(host.GetRoutes()[0])
			}
		}
		if got != tc.want {
			t.Errorf("%+v: got %q", tc, got)
		}
	}
}

// describe says what a route is recognised by in these tests.
func describe(r *routev3.Route) string {
	switch {
	case r.GetDirectResponse().GetStatus() == 418:
		return "418"
	case r.GetDirectResponse() != nil:
		return "204"
	case r.GetMatch().GetPathSeparatedPrefix() != "":
		return r.GetMatch().GetPathSeparatedPrefix()
	default:
		return r.GetName()
	}
}

// A service with routes has listeners at its addresses; an on-demand sidecar, which routes by the host, has none.
func TestServicesWithRoutesHaveListeners(t *testing.T) {
	w := load(t, meshRoutes)
	names, err := plan.List(listener.Translator{}, w.key, w.state)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"10.96.0.1_80": true, "10.96.0.1_8080": false, "10.96.0.2_80": false, "0.0.0.0_80": true} {
		if slices.Contains(names, name) != want {
			t.Errorf("%s: listed %v, want %v", name, !want, want)
		}
	}
	m, err := listener.Translator{}.Build(w.reader(), "10.96.0.1_80")
	if err != nil {
		t.Fatal(err)
	}
	if found := managers(t, m.(*listenerv3.Listener)); len(found) != 1 ||
		found[0].GetRds().GetRouteConfigName() != "shop.default.svc.cluster.local:80" {
		t.Errorf("the listener at the service's address routes by %v", found)
	}
}

// Proxyless gRPC clients and on-demand sidecars follow the routes of services too.
func TestRoutesOfServicesForOtherClients(t *testing.T) {
	w := load(t, meshRoutes)
	w.key.Type = class.Proxyless
	for _, translator := range translate.All() {
		if kindOf(translator) != "RouteConfiguration" {
			continue
		}
		m, err := translator.Build(w.reader(), "outbound|80||shop.default.svc.cluster.local")
		if err != nil || m == nil {
			t.Fatalf("%v, %v", m, err)
		}
		routes := m.(*routev3.RouteConfiguration).GetVirtualHosts()[0].GetRoutes()
		if got := routes[0].GetMatch().GetSafeRegex().GetRegex(); len(routes) != 3 || got != "/v2(/.*)?" {
			t.Errorf("%d routes, the first for %q", len(routes), got)
		}
	}
	w = load(t, meshRoutes)
	w.key.VirtualHosts, w.key.OnDemand = true, true
	m, err := route.VirtualHosts{}.Build(w.reader(), "80/shop")
	if err != nil || m == nil {
		t.Fatalf("%v, %v", m, err)
	}
	if got := describe(m.(*routev3.VirtualHost).GetRoutes()[0]); got != "/v2" {
		t.Errorf("an on-demand sidecar has %q", got)
	}
}
