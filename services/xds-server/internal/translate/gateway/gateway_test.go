package gateway_test

import (
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/replica"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
)

func TestIntersect(t *testing.T) {
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

func TestAdmits(t *testing.T) {
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
			Gateway: &replica.Gateway{Key: replica.Key{Namespace: "gateways", Name: "g"}},
			Spec:    &networking.Server{Hosts: tc.hosts},
		}
		if got := strings.Join(server.Admits(tc.namespace, tc.host), " "); got != tc.want {
			t.Errorf("server of %v admits %q of %s as %q, want %q", tc.hosts, tc.host, tc.namespace, got, tc.want)
		}
	}
}
