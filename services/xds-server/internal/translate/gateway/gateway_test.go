package gateway_test

import (
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
)

func TestIntersectReturnsTheNarrowerHost(t *testing.T) {
	for _, tc := range []struct{ a, b, want string }{
		{"*", "shop.example.com", "shop.example.com"},
		{"shop.example.com", "*", "shop.example.com"},
		{"*.example.com", "shop.example.com", "shop.example.com"},
		{"*.example.com", "example.com", ""},
		{"*.example.com", "newexample.com", ""},
		{"*.example.com", "*.shop.example.com", "*.shop.example.com"},
		{"*.shop.example.com", "*.example.com", "*.shop.example.com"},
		{"*.a.com", "*.b.com", ""},
		{"*", "*", "*"},
		{"Shop.example.com", "shop.example.com", "shop.example.com"},
		{"a.com", "b.com", ""},
	} {
		got, ok := gateway.Intersect(tc.a, tc.b)
		if got != tc.want || ok != (tc.want != "") {
			t.Errorf("Intersect(%q, %q) = %q, %v, want %q", tc.a, tc.b, got, ok, tc.want)
		}
	}
}

// An AUTO_PASSTHROUGH server leads only to services of the mesh that it admits.
func TestAutoPassthroughToAdmittedServices(t *testing.T) {
	server := func(mode networking.ServerTLSSettings_TLSmode, hosts ...string) *networking.Server {
		return &networking.Server{Port: &networking.Port{Number: 15443, Name: "tls", Protocol: "TLS"}, Hosts: hosts,
			Tls: &networking.ServerTLSSettings{Mode: mode}}
	}
	const auto, pass = networking.ServerTLSSettings_AUTO_PASSTHROUGH, networking.ServerTLSSettings_PASSTHROUGH
	reviews := &configv1.Service{Hostname: "reviews.shop.svc.cluster.local", Namespace: "shop"}
	for name, tc := range map[string]struct {
		server  *networking.Server
		service *configv1.Service
		want    bool
	}{
		"any":                 {server(auto, "*"), reviews, true},
		"under a wildcard":    {server(auto, "*.local"), reviews, true},
		"by name":             {server(auto, "reviews.shop.svc.cluster.local"), reviews, true},
		"of the namespace":    {server(auto, "shop/*"), reviews, true},
		"of another":          {server(auto, "bank/*"), reviews, false},
		"another name":        {server(auto, "ratings.shop.svc.cluster.local"), reviews, false},
		"routed by SNI":       {server(pass, "*"), reviews, false},
		"outside of the mesh": {server(auto, "*"), &configv1.Service{Hostname: "a.example.com", Namespace: "shop", MeshExternal: true}, false},
		"none":                {server(auto, "*"), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			state := meshtest.State(t, meshtest.Config(mesh.KindGateway, "gateways", "g",
				&networking.Gateway{Servers: []*networking.Server{tc.server}}))
			r := input.NewView(&class.Key{Type: class.Router, Namespace: "gateways"}, state).Reader()
			if got := gateway.AutoPassthroughTo(r, tc.service); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestAdmitsByHostAndNamespace(t *testing.T) {
	for _, tc := range []struct {
		hosts           []string
		namespace, host string
		want            string
	}{
		{[]string{"shop.example.com"}, "anywhere", "shop.example.com", "shop.example.com"},
		{[]string{"shop/*.example.com"}, "shop", "a.example.com", "a.example.com"},
		{[]string{"shop/*.example.com"}, "thief", "a.example.com", ""},
		{[]string{"./*.example.com"}, "gateways", "a.example.com", "a.example.com"},
		{[]string{"./*.example.com"}, "thief", "a.example.com", ""},
		{[]string{"*/*.example.com"}, "anywhere", "a.example.com", "a.example.com"},
		{[]string{"a.example.com", "*.example.com", "other/*.org"}, "shop", "*", "a.example.com *.example.com"},
		{[]string{"*", "*.example.com"}, "shop", "a.example.com", "a.example.com"},
		{nil, "shop", "a.example.com", ""},
	} {
		server := gateway.Server{
			Gateway: &mesh.Gateway{Key: mesh.Key{Namespace: "gateways", Name: "g"}},
			Spec:    &networking.Server{Hosts: tc.hosts},
		}
		if got := strings.Join(server.ServedHosts(tc.namespace, tc.host), " "); got != tc.want {
			t.Errorf("server of %v serves %q of %s as %q, want %q", tc.hosts, tc.host, tc.namespace, got, tc.want)
		}
	}
}
