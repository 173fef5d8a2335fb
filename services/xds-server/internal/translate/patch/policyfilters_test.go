package patch_test

import (
	"slices"
	"strings"
	"testing"

	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	manager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	resource "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	security "istio.io/api/security/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// TestFiltersOfPolicies: a patch that places another filter beside one of policies finds its slot, where a policy needs
// that filter; one that changes it, or that belongs in the middle of a slot, finds the filter itself.
func TestFiltersOfPolicies(t *testing.T) {
	const (
		rbac, jwt      = "envoy.filters.http.rbac", "envoy.filters.http.jwt_authn"
		custom, tokens = "fairlead.custom", "fairlead.jwt"
		rules          = "fairlead.authz"
		added          = "added"
		value          = `, value: {name: added, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}}`
	)
	deny := meshtest.Config(mesh.KindAuthorizationPolicy, "shop", "d", &security.AuthorizationPolicy{
		Action: security.AuthorizationPolicy_DENY, Rules: []*security.Rule{{}},
	})
	ask := meshtest.Config(mesh.KindAuthorizationPolicy, "shop", "c", &security.AuthorizationPolicy{
		Action: security.AuthorizationPolicy_CUSTOM, Rules: []*security.Rule{{}},
		ActionDetail: &security.AuthorizationPolicy_Provider{Provider: &security.AuthorizationPolicy_ExtensionProvider{Name: "missing"}},
	})
	verify := meshtest.Config(mesh.KindRequestAuthentication, "shop", "r", &security.RequestAuthentication{
		JwtRules: []*security.JWTRule{{Issuer: "i"}},
	})
	all := []*configv1.Resource{deny, ask, verify}
	for name, tc := range map[string]struct {
		operation, at string
		policies      []*configv1.Resource
		want          []string
	}{
		"before rules":                {"INSERT_BEFORE", "rbac", []*configv1.Resource{deny, verify}, []string{custom, tokens, added, rules}},
		"before rules, some CUSTOM":   {"INSERT_BEFORE", "rbac", all, []string{added, custom, tokens, rules}},
		"before rules, none":          {"INSERT_BEFORE", "rbac", []*configv1.Resource{verify}, []string{custom, tokens, rules}},
		"before tokens":               {"INSERT_BEFORE", "jwt_authn", all, []string{custom, added, tokens, rules}},
		"after tokens":                {"INSERT_AFTER", "jwt_authn", all, []string{custom, tokens, added, rules}},
		"after tokens, none":          {"INSERT_AFTER", "jwt_authn", []*configv1.Resource{deny}, []string{custom, tokens, rules}},
		"first, if there are rules":   {"INSERT_FIRST", "rbac", []*configv1.Resource{deny}, []string{added, custom, tokens, rules}},
		"first, if there were tokens": {"INSERT_FIRST", "jwt_authn", []*configv1.Resource{deny}, []string{custom, tokens, rules}},
		"in the middle of rules":      {"INSERT_AFTER", "rbac", all, []string{rbac, added, jwt, rbac}},
		"before a provider's filter":  {"INSERT_BEFORE", "ext_authz", []*configv1.Resource{deny}, []string{rbac}},
		"the filter goes":             {"REMOVE", "jwt_authn", all, []string{rbac, rbac}},
		"another is concerned":        {"INSERT_BEFORE", "router", []*configv1.Resource{deny}, []string{custom, tokens, rules}},
	} {
		t.Run(name, func(t *testing.T) {
			key := sidecar()
			key.Filters = class.FilterChains | class.RBAC | class.ExtAuthz | class.JWT
			patch := "operation: " + tc.operation
			if tc.operation != "REMOVE" {
				patch += value
			}
			patched := meshtest.EnvoyFilter("shop", "f", filter("HTTP_FILTER", "context: SIDECAR_INBOUND, "+sub(tc.at), patch))
			filters := append(slices.Clone(tc.policies), patched)
			m, err := build(t, key, resource.ListenerType, "virtualInbound", filters...)
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, c := range m.(*listener.Listener).GetFilterChains() {
				for _, f := range c.GetFilters() {
					config := &manager.HttpConnectionManager{}
					if f.GetTypedConfig().UnmarshalTo(config) != nil {
						continue
					}
					var got []string
					for _, f := range config.GetHttpFilters() {
						if name := f.GetName(); strings.HasPrefix(name, "fairlead.") || slices.Contains([]string{added, rbac, jwt}, name) {
							got = append(got, name)
						}
					}
					if tc.at == "router" {
						got = slices.DeleteFunc(got, func(name string) bool { return name == added })
					}
					if !slices.Equal(got, tc.want) {
						t.Errorf("filter chain %s: %q, want %q", c.GetName(), got, tc.want)
					}
					found++
				}
			}
			if found == 0 {
				t.Error("no filter chain of HTTP")
			}
		})
	}
}
