package translate_test

import (
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
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
		// As routes are attached to all ports of some services, other services are chosen by their addresses too.
		{"default", "shop.default.svc.cluster.local:8080", "shop.default.svc.cluster.local:8080", "default"},
		{"default", "beta.default.svc.cluster.local:80", "beta.default.svc.cluster.local:80", "default"},
		{"default", "db.default.svc.cluster.local:5432", "", ""},
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

// Where routes are attached to a port of a service, all services with such a port have listeners at their addresses; an
// on-demand sidecar, which routes by the host, has none.
func TestServicesWithRoutesHaveListeners(t *testing.T) {
	at := func(port uint32, client string) *configv1.Resource {
		return meshtest.GatewayAPI(mesh.KindHTTPRoute, "default", "r", &configv1.AttachedRoute{
			Services: []*configv1.ServiceAttachment{{Hostname: "a.default.svc.cluster.local", Port: port, ClientNamespace: client}},
		})
	}
	for name, tc := range map[string]struct {
		route *configv1.Resource
		want  []string
	}{
		"one port":          {at(80, ""), []string{"10.0.0.1_80", "10.0.0.2_80"}},
		"all ports":         {at(0, ""), []string{"10.0.0.1_80", "10.0.0.1_81", "10.0.0.2_80"}},
		"another port":      {at(82, ""), nil},
		"own namespace":     {at(80, "default"), []string{"10.0.0.1_80", "10.0.0.2_80"}},
		"another namespace": {at(80, "other"), nil},
	} {
		w := load(t, meshRoutes)
		w.state = meshtest.State(t, tc.route,
			meshtest.Service("default", "a.default.svc.cluster.local", 80, func(s *configv1.Service) {
				s.Addresses = []string{"10.0.0.1"}
				s.Ports = append(s.Ports, &configv1.ServicePort{Name: "more", Number: 81, Protocol: configv1.Protocol_PROTOCOL_HTTP})
			}),
			meshtest.Service("default", "b.default.svc.cluster.local", 80, func(s *configv1.Service) { s.Addresses = []string{"10.0.0.2"} }))
		for _, onDemand := range []bool{false, true} {
			w.key.OnDemand = onDemand
			names, err := plan.List(listener.Translator{}, w.key, w.state)
			if err != nil {
				t.Fatal(err)
			}
			names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, "10.0.0.") })
			want := tc.want
			if onDemand {
				want = nil
			}
			if !slices.Equal(names, want) {
				t.Errorf("%s, on demand %v: got %v, want %v", name, onDemand, names, want)
			}
		}
	}
	w := load(t, meshRoutes)
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
