package debug_test

import (
	"strings"
	"testing"

	"fairlead.dev/services/xds-server/internal/meshtest"
)

// TestWhyEnvoyFilter: the answer names the EnvoyFilters that have changed a resource, and the patches that were left
// out.
func TestWhyEnvoyFilter(t *testing.T) {
	patch := func(match, value string) string {
		return "configPatches: [{applyTo: CLUSTER, match: {" + match + "}, patch: {operation: MERGE, value: {" + value + "}}}]"
	}
	p := newPages(t, nil, append(shop(),
		meshtest.EnvoyFilter("istio-system", "patient", patch("", "connect_timeout: 3s")),
		meshtest.EnvoyFilter("shop", "broken", patch("cluster: {service: "+reviews+"}", "connect_timeout: -3s")),
		meshtest.EnvoyFilter("shop", "elsewhere", patch("cluster: {service: "+ratings+"}", "connect_timeout: 5s")),
	)...)
	a := p.why(cluster, "clusters")
	var made []string
	for _, o := range a.MadeFrom {
		if o.Kind == "EnvoyFilter" {
			made = append(made, o.Namespace+"/"+o.Name)
		}
	}
	if got := strings.Join(made, " "); got != "istio-system/patient" {
		t.Errorf("made from %q", got)
	}
	if a.Version == "" || !strings.Contains(a.Problem, "EnvoyFilter shop/broken is left out: ") ||
		!strings.Contains(a.Problem, "ConnectTimeout") {
		t.Errorf("version %q, problem %q", a.Version, a.Problem)
	}
}
