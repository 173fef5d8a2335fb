package policy_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/policy"
)

// tried is a policy in dry run.
func tried(t *testing.T, name, text string) *configv1.Resource {
	t.Helper()
	return meshtest.Config(mesh.KindAuthorizationPolicy, "apps", name, spec(t, text, &security.AuthorizationPolicy{}),
		func(c *configv1.IstioConfig) { c.Annotations = map[string]string{authz.DryRunAnnotation: "true"} })
}

// TestDryRunsAreCountedByCaller: listeners count requests whatever policies apply, so that a first one does not change
// them, and connections where they are tried.
func TestDryRunsAreCountedByCaller(t *testing.T) {
	const counting = complete | class.StatsLogger
	deny, enforced := tried(t, "p", "{action: DENY, rules: [{}]}"), authorization(t, "p", "{action: DENY, rules: [{}]}")
	for name, tc := range map[string]struct {
		filters     class.Filters
		policies    []*configv1.Resource
		http, conns int
	}{
		"no policy":               {counting, nil, 1, 0},
		"enforced":                {counting, []*configv1.Resource{enforced}, 1, 0},
		"tried":                   {counting, []*configv1.Resource{deny}, 1, 1},
		"tried ALLOW":             {counting, []*configv1.Resource{tried(t, "p", "{rules: [{}]}")}, 1, 1},
		"a proxy without the log": {complete, []*configv1.Resource{deny}, 0, 0},
		"an older proxy":          {counting &^ class.FilterChains, []*configv1.Resource{deny}, 0, 0},
	} {
		r := reader(t, tc.filters, tc.policies...)
		http, conns := policy.HTTPLogs(r), policy.ConnectionLogs(r)
		if len(http) != tc.http || len(conns) != tc.conns {
			t.Errorf("%s: logs of HTTP %v, of connections %v", name, http, conns)
		}
		for _, log := range conns {
			if !strings.Contains(log.String(), "envoy.filters.network.rbac") || proto.Equal(log, http[0]) {
				t.Errorf("%s: of connections: %v", name, log)
			}
		}
	}
}

// TestRulesAreCounted: Envoy counts by rule what each of the filters of HTTP matches; gRPC libraries do not know of it.
func TestRulesAreCounted(t *testing.T) {
	enforced := authorization(t, "p", "{action: DENY, rules: [{}]}")
	ask := authorization(t, "ask", "{action: CUSTOM, provider: {name: missing}, rules: [{}]}")
	r := reader(t, complete, enforced, ask)
	for _, name := range []string{"fairlead.authz", "fairlead.custom"} {
		if _, rbac := slot(t, r, name); !rbac.GetTrackPerRuleStats() {
			t.Errorf("%s: %v", name, rbac)
		}
	}
	filters, err := policy.Proxyless(r)
	if err != nil || len(filters) == 0 {
		t.Fatal(filters, err)
	}
	for _, rbac := range filters {
		if rbac.GetTrackPerRuleStats() {
			t.Errorf("a proxyless server: %v", rbac)
		}
	}
}
