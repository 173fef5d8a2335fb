package class_test

import (
	"slices"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
)

// TestFiltersOfANode: what a node lists is what the proxy has. One that lists nothing is taken for an Envoy of before
// filter chains.
func TestFiltersOfANode(t *testing.T) {
	const rbac, extAuthz, jwt, chains, stats = "envoy.filters.http.rbac", "envoy.filters.http.ext_authz", "envoy.filters.http.jwt_authn",
		"envoy.filters.http.filter_chain", "envoy.access_loggers.stats"
	for name, tc := range map[string]struct {
		extensions []string
		want       class.Filters
		names      []string
	}{
		"none listed": {nil, class.RBAC | class.ExtAuthz | class.JWT, []string{extAuthz, jwt, rbac}},
		"all": {
			[]string{jwt, chains, rbac, extAuthz}, class.FilterChains | class.RBAC | class.ExtAuthz | class.JWT,
			[]string{extAuthz, chains, jwt, rbac},
		},
		"that counts":  {[]string{stats}, class.StatsLogger, []string{stats}},
		"others only":  {[]string{"envoy.filters.http.router", "envoy.filters.network.rbac"}, 0, nil},
		"one of them":  {[]string{"envoy.filters.http.router", rbac}, class.RBAC, []string{rbac}},
		"listed twice": {[]string{jwt, jwt}, class.JWT, []string{jwt}},
	} {
		t.Run(name, func(t *testing.T) {
			n := &core.Node{Id: "sidecar~10.0.0.1~web.apps~apps.svc.cluster.local"}
			for _, e := range tc.extensions {
				n.Extensions = append(n.Extensions, &core.Extension{Name: e})
			}
			node, err := class.ParseNode(n)
			if err != nil {
				t.Fatal(err)
			}
			if node.Filters != tc.want || !slices.Equal(node.Filters.Names(), tc.names) {
				t.Errorf("filters %b %q, want %b %q", node.Filters, node.Filters.Names(), tc.want, tc.names)
			}
			for _, f := range []class.Filters{class.FilterChains, class.RBAC, class.ExtAuthz, class.JWT, class.StatsLogger, class.RBAC | class.JWT} {
				if got, want := node.Filters.Has(f), tc.want&f == f; got != want {
					t.Errorf("has %q: %v, want %v", f.Names(), got, want)
				}
			}
		})
	}
	for extension, want := range map[string]bool{rbac: true, chains: true, stats: true, "envoy.filters.network.rbac": false, "": false} {
		if got := class.IsFilter(extension); got != want {
			t.Errorf("%q is an extension of policies: %v", extension, got)
		}
	}
}

// TestAnOlderAgentTakesNoSlots: its proxies would fail requests when xds-server is rolled back to a release that knows
// no slots of policies.
func TestAnOlderAgentTakesNoSlots(t *testing.T) {
	for name, tc := range map[string]struct {
		metadata map[string]any
		want     class.Filters
	}{
		"Istio's":               {map[string]any{"ISTIO_VERSION": "1.31.1"}, class.FilterChains | class.RBAC},
		"one of before":         {map[string]any{"FAIRLEAD_VERSION": "v0.9.0"}, class.RBAC},
		"this release's":        {map[string]any{"FAIRLEAD_VERSION": "v1", contract.KeepsExtensionConfigs: "true"}, class.FilterChains | class.RBAC},
		"that says it does not": {map[string]any{"FAIRLEAD_VERSION": "v1", contract.KeepsExtensionConfigs: "no"}, class.RBAC},
	} {
		n := &core.Node{Id: "sidecar~10.0.0.1~web.apps~apps.svc.cluster.local", Metadata: metadata(t, tc.metadata)}
		for _, e := range []string{"envoy.filters.http.filter_chain", "envoy.filters.http.rbac"} {
			n.Extensions = append(n.Extensions, &core.Extension{Name: e})
		}
		node := testkit.Must(class.ParseNode(n))(t)
		if node.Filters != tc.want {
			t.Errorf("%s: filters %q, want %q", name, node.Filters.Names(), tc.want.Names())
		}
	}
}
