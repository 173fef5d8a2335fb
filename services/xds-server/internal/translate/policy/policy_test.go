package policy_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	filterchainv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/filter_chain/v3"
	jwtauthnv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"
	"sigs.k8s.io/yaml"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/cluster"
	"fairlead.dev/services/xds-server/internal/translate/listener"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

const complete = class.FilterChains | class.RBAC | class.ExtAuthz | class.JWT

// reader reads a mesh as a sidecar of namespace apps does that has the filters.
func reader(t *testing.T, filters class.Filters, resources ...*configv1.Resource) *input.Reader {
	t.Helper()
	return input.NewView(&class.Key{
		Type: class.Sidecar, Namespace: "apps", TrustDomain: "cluster.local", DNSDomain: "apps.svc.cluster.local", Interception: class.Redirect,
		Filters: filters,
		Targets: []class.Target{
			{Hostname: "web.apps.svc.cluster.local", Namespace: "apps", Port: 90, TargetPort: 9090, Protocol: int32(configv1.Protocol_PROTOCOL_TCP)},
		},
	}, meshtest.State(t, resources...)).Reader()
}

// spec reads YAML; a mistake in it is a broken test.
func spec[M proto.Message](t *testing.T, text string, m M) M {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(raw, m); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}

func authorization(t *testing.T, name, text string) *configv1.Resource {
	t.Helper()
	return meshtest.Config(mesh.KindAuthorizationPolicy, "apps", name, spec(t, text, &security.AuthorizationPolicy{}))
}

// slot builds an extension config and returns the names of its filters and the last one that is RBAC.
func slot(t *testing.T, r *input.Reader, name string) (names []string, rbac *httprbacv3.RBAC) {
	t.Helper()
	m, err := policy.Slot(r, name)
	if err != nil {
		t.Fatal(err)
	}
	chain := &filterchainv3.FilterChainConfig{}
	if m.GetName() != name || m.GetTypedConfig().UnmarshalTo(chain) != nil {
		t.Fatalf("%s is %v", name, m)
	}
	for _, f := range chain.GetDefaultFilterChain().GetFilters() {
		names = append(names, f.GetName())
		if f.GetTypedConfig().MessageIs(&httprbacv3.RBAC{}) {
			rbac = &httprbacv3.RBAC{}
			if err := f.GetTypedConfig().UnmarshalTo(rbac); err != nil {
				t.Fatal(err)
			}
		}
	}
	return names, rbac
}

// TestRulesAreEnvoyMatchers has a rule of a policy and what Envoy is told to match.
func TestRulesAreEnvoyMatchers(t *testing.T) {
	for name, tc := range map[string]struct{ rule, want string }{
		"everything": {"", "{permissions: [{any: true}], principals: [{any: true}]}"},
		"principal": {
			"from: [{source: {principals: [cluster.local/ns/a/sa/b]}}]",
			"{permissions: [{any: true}], principals: [{authenticated: {principal_name: {exact: 'spiffe://cluster.local/ns/a/sa/b'}}}]}",
		},
		"any principal": {
			"from: [{source: {principals: ['*']}}]",
			"{permissions: [{any: true}], principals: [{authenticated: {principal_name: {safe_regex: {regex: .+}}}}]}",
		},
		"addresses but some": {
			"from: [{source: {ipBlocks: [10.0.0.0/8, 192.0.2.1], notRemoteIpBlocks: ['2001:db8::/32']}}]",
			"{permissions: [{any: true}], principals: [{and_ids: {ids: [{not_id: {remote_ip: {address_prefix: '2001:db8::', " +
				"prefix_len: 32}}}, {or_ids: {ids: [{direct_remote_ip: {address_prefix: 10.0.0.0, prefix_len: 8}}, " +
				"{direct_remote_ip: {address_prefix: 192.0.2.1, prefix_len: 32}}]}}]}}]}",
		},
		"two sources": {
			"from: [{source: {principals: [cluster.local/ns/a/sa/b]}}, {source: {remoteIpBlocks: [192.0.2.1]}}]",
			"{permissions: [{any: true}], principals: [{or_ids: {ids: [{authenticated: {principal_name: {exact: " +
				"'spiffe://cluster.local/ns/a/sa/b'}}}, {remote_ip: {address_prefix: 192.0.2.1, prefix_len: 32}}]}}]}",
		},
		"methods and paths": {
			"to: [{operation: {methods: [GET], paths: [/a, '/b*', '*/c'], notPaths: [/b/not]}}]",
			"{principals: [{any: true}], permissions: [{and_rules: {rules: [" +
				"{header: {name: ':method', string_match: {exact: GET}}}, {or_rules: {rules: [{url_path: {path: {exact: /a}}}, " +
				"{url_path: {path: {prefix: /b}}}, {url_path: {path: {suffix: /c}}}]}}, {not_rule: {url_path: {path: {exact: /b/not}}}}]}}]}",
		},
		"host": {
			"to: [{operation: {hosts: [Web.example.com]}}]",
			"{principals: [{any: true}], permissions: [{header: {name: ':authority', string_match: {exact: Web.example.com, ignore_case: true}}}]}",
		},
		"port": {
			"to: [{operation: {ports: ['8080']}}]", "{principals: [{any: true}], permissions: [{destination_port: 8080}]}",
		},
		"server name": {
			"when: [{key: connection.sni, values: ['*.example.com']}]",
			"{principals: [{any: true}], permissions: [{requested_server_name: {suffix: .example.com}}]}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, rbac := slot(t, reader(t, complete, authorization(t, "p", "{action: DENY, rules: [{"+tc.rule+"}]}")), "fairlead.authz")
			want := spec(t, tc.want, &rbacv3.Policy{})
			if got := rbac.GetRules().GetPolicies()["ns[apps]-policy[p]-rule[0]"]; !proto.Equal(got, want) {
				t.Errorf("%s\nis   %v\nwant %v", tc.rule, got, want)
			}
			if action := rbac.GetRules().GetAction(); action != rbacv3.RBAC_DENY {
				t.Errorf("action %v", action)
			}
		})
	}
}

// TestRepeatedHeadersAreJoined: Envoy's header matchers take repeated headers one by one, so that a second one would
// dodge notValues. Conditions on headers are CEL, which sees one value.
func TestRepeatedHeadersAreJoined(t *testing.T) {
	_, rbac := slot(t, reader(t, complete, authorization(t, "p",
		"{action: DENY, rules: [{when: [{key: 'request.headers[X-User]', notValues: [user]}]}]}")), "fairlead.authz")
	p := rbac.GetRules().GetPolicies()["ns[apps]-policy[p]-rule[0]"]
	if p.GetCondition() == nil {
		t.Fatalf("no condition: %v", p)
	}
	if text := p.GetCondition().String(); !strings.Contains(text, `"x-user"`) || !strings.Contains(text, `"user"`) || !strings.Contains(text, "!_") {
		t.Errorf("condition %s", text)
	}
	if text := protojson.Format(&rbacv3.Policy{Permissions: p.GetPermissions(), Principals: p.GetPrincipals()}); strings.Contains(text, "x-user") {
		t.Errorf("the header is matched beside the condition: %s", text)
	}
}

// TestActionsAreInOrder: a request passes CUSTOM, tokens, AUDIT, DENY and ALLOW, each in its filter.
func TestActionsAreInOrder(t *testing.T) {
	policies := []*configv1.Resource{
		authorization(t, "a", "{rules: [{}]}"), authorization(t, "d", "{action: DENY, rules: [{}]}"),
		authorization(t, "l", "{action: AUDIT, rules: [{}]}"),
		authorization(t, "c", "{action: CUSTOM, provider: {name: missing}, rules: [{}]}"),
		meshtest.Config(mesh.KindRequestAuthentication, "apps", "r", spec(t, "jwtRules: [{issuer: i}]", &security.RequestAuthentication{})),
	}
	const rbac, jwt = "envoy.filters.http.rbac", "envoy.filters.http.jwt_authn"
	var beside []string
	r := reader(t, complete, policies...)
	in, err := policy.HTTPFilters(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range in {
		names, _ := slot(t, r, f.GetName())
		beside = append(beside, names...)
		if f.GetConfigDiscovery() == nil || f.GetConfigDiscovery().GetDefaultConfig() != nil {
			t.Errorf("filter %s is not a resource that the proxy waits for: %v", f.GetName(), f)
		}
	}
	var within []string
	in, err = policy.HTTPFilters(reader(t, complete&^class.FilterChains, policies...))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range in {
		within = append(within, f.GetName())
	}
	want := []string{rbac, jwt, rbac, rbac, rbac}
	if !slices.Equal(beside, want) || !slices.Equal(within, want) {
		t.Errorf("beside the listener %q, within it %q, want %q", beside, within, want)
	}
	for name, action := range map[string]rbacv3.RBAC_Action{"fairlead.custom": rbacv3.RBAC_DENY, "fairlead.authz": rbacv3.RBAC_ALLOW} {
		if _, last := slot(t, r, name); last.GetRules().GetAction() != action {
			t.Errorf("the last filter of %s is %v", name, last)
		}
	}
}

// TestClustersOfProviders: a provider's cluster is named where a policy asks it and its service has the port.
func TestClustersOfProviders(t *testing.T) {
	const host = "opa.x.svc.cluster.local"
	asked := authorization(t, "c", "{action: CUSTOM, provider: {name: opa}, rules: [{}]}")
	service := meshtest.Service("x", host, 80)
	for name, tc := range map[string]struct {
		port      string
		resources []*configv1.Resource
		want      []string
	}{
		"asked":      {"80", []*configv1.Resource{asked, service}, []string{resourcename.OutboundCluster(80, "", host)}},
		"not asked":  {"80", []*configv1.Resource{service}, nil},
		"no service": {"80", []*configv1.Resource{asked}, nil},
		"no port":    {"81", []*configv1.Resource{asked, service}, nil},
	} {
		settings := spec(t, "extensionProviders: [{name: opa, envoyExtAuthzGrpc: {service: "+host+", port: "+tc.port+"}}]",
			&meshv1alpha1.MeshConfig{})
		if got := policy.Clusters(reader(t, complete, append(tc.resources, meshtest.Mesh(settings))...)); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestAProxyThatLacksAFilterIsClosed: it takes no request and no connection to which policies apply, and the report
// names the filter.
func TestAProxyThatLacksAFilterIsClosed(t *testing.T) {
	allow := authorization(t, "a", "{rules: [{}]}")
	ask := authorization(t, "c", "{action: CUSTOM, provider: {name: missing}, rules: [{}]}")
	tokens := meshtest.Config(mesh.KindRequestAuthentication, "apps", "r",
		spec(t, "jwtRules: [{issuer: i}]", &security.RequestAuthentication{}))
	elsewhere := meshtest.Config(mesh.KindAuthorizationPolicy, "other", "p", &security.AuthorizationPolicy{})
	for name, tc := range map[string]struct {
		filters   class.Filters
		policies  []*configv1.Resource
		lacks     string
		otherThan string
	}{
		"nothing is needed":         {0, nil, "", ""},
		"needed elsewhere":          {0, []*configv1.Resource{elsewhere}, "", ""},
		"everything is there":       {complete &^ class.FilterChains, []*configv1.Resource{allow, ask, tokens}, "", ""},
		"rules without RBAC":        {complete &^ class.RBAC, []*configv1.Resource{allow}, "envoy.filters.http.rbac", "jwt_authn"},
		"a provider, no ext_authz":  {complete &^ class.ExtAuthz, []*configv1.Resource{ask}, "envoy.filters.http.ext_authz", "rbac"},
		"rules do not need the JWT": {class.RBAC, []*configv1.Resource{allow}, "", ""},
		"tokens without JWT":        {class.RBAC, []*configv1.Resource{tokens}, "envoy.filters.http.jwt_authn", "rbac"},
		"several": {
			class.FilterChains, []*configv1.Resource{ask, tokens},
			"envoy.filters.http.ext_authz, envoy.filters.http.jwt_authn, envoy.filters.http.rbac", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			resources := append(tc.policies, meshtest.Service("apps", "web.apps.svc.cluster.local", 90))
			r := reader(t, tc.filters, resources...)
			err := policy.Lacking(r)
			if tc.lacks == "" {
				if err != nil {
					t.Errorf("closed: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.lacks) || tc.otherThan != "" && strings.Contains(err.Error(), tc.otherThan) {
				t.Errorf("closed for %v, want %s", err, tc.lacks)
			}
			filters, e := policy.HTTPFilters(r)
			if e != nil || len(filters) != 1 || filters[0].GetName() != "envoy.filters.http.fault" {
				t.Errorf("filters %v, %v", filters, e)
			}
			m, e := listener.Translator{}.Build(r, "virtualInbound")
			if incomplete, ok := errors.AsType[*plan.Incomplete](e); !ok || incomplete.Err.Error() != err.Error() {
				t.Errorf("the listener is built with %v, want it incomplete because of: %v", e, err)
			}
			proxies := 0
			for _, chain := range append(m.(*listenerv3.Listener).GetFilterChains(), m.(*listenerv3.Listener).GetDefaultFilterChain()) {
				for _, f := range chain.GetFilters() {
					proxy := &tcpproxyv3.TcpProxy{}
					if f.GetTypedConfig().UnmarshalTo(proxy) != nil {
						continue
					}
					if proxies++; proxy.GetCluster() != resourcename.BlackHoleCluster {
						t.Errorf("chain %s leads to %s", chain.GetName(), proxy.GetCluster())
					}
				}
			}
			if proxies == 0 {
				t.Error("the listener has no TCP proxy")
			}
			m, e = listener.Translator{}.Build(r, "virtualOutbound")
			if e != nil || m == nil {
				t.Errorf("what the workload itself calls is closed too: %v", e)
			}
		})
	}
}

// TestDatagrams: a port of UDP is closed by each policy that decides about it, and by no other.
func TestDatagrams(t *testing.T) {
	for text, closed := range map[string]bool{
		"{}":                           true, // nothing is allowed
		"{rules: [{}]}":                false,
		"{action: DENY}":               false,
		"{action: DENY, rules: [{}]}":  true,
		"{action: AUDIT, rules: [{}]}": false,
		"{rules: [{to: [{operation: {ports: ['53']}}]}]}":                                                  false,
		"{rules: [{to: [{operation: {ports: ['80']}}]}]}":                                                  true,
		"{rules: [{to: [{operation: {notPorts: ['80']}}]}]}":                                               false,
		"{rules: [{from: [{source: {ipBlocks: [10.0.0.0/8]}}]}]}":                                          true,
		"{rules: [{from: [{source: {ipBlocks: [10.0.0.0/8]}}]}, {to: [{operation: {ports: ['53']}}]}]}":    false,
		"{rules: [{when: [{key: destination.port, values: ['53']}]}]}":                                     false,
		"{rules: [{to: [{operation: {ports: ['53'], methods: [GET]}}]}]}":                                  true,
		"{action: DENY, rules: [{to: [{operation: {ports: ['80']}}]}]}":                                    false,
		"{action: DENY, rules: [{to: [{operation: {ports: ['80']}}, {operation: {methods: [GET]}}]}]}":     true,
		"{action: DENY, rules: [{to: [{operation: {notPorts: ['53']}}]}]}":                                 false,
		"{action: DENY, rules: [{when: [{key: destination.port, values: ['80']}]}]}":                       false,
		"{action: DENY, rules: [{from: [{source: {ipBlocks: [10.0.0.0/8]}}]}]}":                            true,
		"{action: CUSTOM, provider: {name: x}, rules: [{}]}":                                               true,
		"{action: CUSTOM, provider: {name: x}, rules: [{to: [{operation: {ports: ['80'], paths: [/]}}]}]}": false,
	} {
		err := policy.Datagrams(reader(t, complete, authorization(t, "p", text)), 53)
		if (err != nil) != closed || err != nil && !strings.Contains(err.Error(), "AuthorizationPolicy apps/p ") {
			t.Errorf("%s: closed for %v, want closed %v", text, err, closed)
		}
	}
	if err := policy.Datagrams(reader(t, complete), 53); err != nil {
		t.Errorf("without policies: %v", err)
	}
}

// TestSlots: a proxy that has the filters takes them as resources of fixed names, with policies and without.
func TestSlots(t *testing.T) {
	r := reader(t, complete)
	want := []string{"fairlead.authz", "fairlead.custom", "fairlead.jwt"}
	if got := policy.SlotNames(r); !slices.Equal(got, want) {
		t.Errorf("slots %q, want %q", got, want)
	}
	for _, name := range want {
		if names, _ := slot(t, r, name); names != nil {
			t.Errorf("slot %s of no policy has the filters %q", name, names)
		}
	}
	if m, err := policy.Slot(r, "other"); m != nil || err != nil {
		t.Errorf("a slot of another name: %v, %v", m, err)
	}
	for _, filters := range []class.Filters{0, complete &^ class.FilterChains, complete &^ class.JWT} {
		r := reader(t, filters)
		if got := policy.SlotNames(r); got != nil {
			t.Errorf("%q: slots %q", filters.Names(), got)
		}
		if m, err := policy.Slot(r, "fairlead.jwt"); m != nil || err != nil {
			t.Errorf("%q: %v, %v", filters.Names(), m, err)
		}
	}
}

// TestTokensWithoutKeys: an issuer of whom no key is known has a source of keys that is not a set, in a cluster that
// every proxy has.
func TestTokensWithoutKeys(t *testing.T) {
	r := reader(t, complete, meshtest.Config(mesh.KindRequestAuthentication, "apps", "unknown",
		spec(t, `jwtRules: [{issuer: issuer.example.com, jwksUri: "https://keys.example.com/"}]`, &security.RequestAuthentication{})))
	m, err := policy.Slot(r, "fairlead.jwt")
	if err != nil {
		t.Fatal(err)
	}
	chain, tokens := &filterchainv3.FilterChainConfig{}, &jwtauthnv3.JwtAuthentication{}
	if err := m.GetTypedConfig().UnmarshalTo(chain); err != nil {
		t.Fatal(err)
	}
	if err := chain.GetDefaultFilterChain().GetFilters()[0].GetTypedConfig().UnmarshalTo(tokens); err != nil {
		t.Fatal(err)
	}
	clusters, err := cluster.Translator{}.Names(r)
	if err != nil {
		t.Fatal(err)
	}
	keys := tokens.GetProviders()["origins-0"].GetRemoteJwks().GetHttpUri()
	if keys.GetCluster() != resourcename.BlackHoleCluster || !slices.Contains(clusters, keys.GetCluster()) {
		t.Errorf("keys are asked of %v; clusters are %q", keys, clusters)
	}
}
