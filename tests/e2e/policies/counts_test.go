package policies

import (
	"fmt"
	"io"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/e2e/internal/hostmesh"
)

// TestConnectionsOfADryRunAreCounted opens connections of TCP that a policy in dry run would refuse. They are counted
// with the rule at their end, and the count survives the listener's change.
func TestConnectionsOfADryRunAreCounted(t *testing.T) {
	hostmesh.Needs(t)
	tried := func(more string) string {
		return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: apps, annotations: " +
			`{istio.io/dry-run: "true"}}` + "\nspec: {action: DENY, rules: [{to: [{operation: {ports: ['9090']}}]}" + more + "]}\n"
	}
	m := hostmesh.New(t, 1, map[string]string{"workload.yaml": workload, "policy.yaml": tried("")})
	proxy, caller := serverAndCaller(t, m, drains)
	counted := func(want int64) {
		t.Helper()
		stream := dial(t, caller, tcpPort)
		say(t, stream)
		stream.Close()
		testkit.Eventually(t, testkit.Patience, func() error {
			name := contract.DryRunMetric + ".deny.ns[apps]-policy[p]-rule[0].allow..source_principal."
			if got := proxy.Stats(contract.DryRunMetric + "|rbac"); got[name] != want || got["tcp.rbac.istio_dry_run_deny_.shadow_denied"] != want {
				return fmt.Errorf("%v, want %d of %s", got, want, name)
			}
			return nil
		})
	}
	counted(1)

	// A connection that is open ends with the listener's old filter chain.
	open := dial(t, caller, tcpPort)
	say(t, open)
	m.WriteConfig("policy.yaml", tried(", {to: [{operation: {ports: ['9091']}}]}"))
	_, _ = io.ReadAll(open)
	counted(3)
}
