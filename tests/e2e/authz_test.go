package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/tests/e2e/internal/fleet"
)

// refusals are what `fairlead authz dry-run -o json` says of one rule and caller.
type refusals struct {
	Action, Policy   string
	Rule             *int
	Caller, Workload string
	Requests         int
}

// matched is what `fairlead authz coverage -A -o json` says of one rule.
type matched struct {
	Policy  string
	Rule    int
	Matched *int
}

func askJSON(t *testing.T, m *fleet.Mesh, out any, args ...string) error {
	code, stdout, stderr := m.CLI(t, append(args, "-o", "json")...)
	if code != 0 {
		return fmt.Errorf("fairlead %v: exit code %d: %s", args, code, stderr)
	}
	return json.Unmarshal([]byte(stdout), out)
}

// TestPoliciesAreCounted sends requests that policies in dry run would refuse, from two callers, and asks how many
// there were, and which rules have matched.
func TestPoliciesAreCounted(t *testing.T) {
	m := fleet.Start(t, binaries, fleet.Options{Files: []string{"testdata/pair.yaml", "testdata/dry-run.yaml"}})
	m.WaitReady(t)
	server := "server-v1-0"
	for _, r := range []struct {
		from, path    string
		status, times int
	}{
		{"client-0", "/tried", http.StatusOK, 3}, {"client-0", "/ok", http.StatusOK, 5}, {"client-0", "/denied", http.StatusForbidden, 4},
		{"late-0", "/ok", http.StatusOK, 2},
	} {
		for range r.times {
			a, err := m.From(t, r.from).Get(t.Context(), "http://server.apps"+r.path)
			if err != nil || a.Status != r.status {
				t.Fatalf("%s from %s: %d, %v", r.path, r.from, a.Status, err)
			}
		}
	}
	const late = "spiffe://cluster.local/ns/apps/sa/late"
	want := []refusals{
		{"ALLOW", "", nil, clientID, server + ".apps", 3},
		{"DENY", "apps/try", new(0), clientID, server + ".apps", 3},
		{"DENY", "apps/try", new(1), late, server + ".apps", 2},
	}
	// Workers of an Envoy hand over what they have counted.
	m.Eventually(t, takesEffect, func() error {
		var got struct{ Refusals []refusals }
		if err := askJSON(t, m, &got, "authz", "dry-run"); err != nil {
			return err
		}
		if d := cmp.Diff(want, got.Refusals); d != "" {
			return fmt.Errorf("refusals (-want +got):\n%s", d)
		}
		return nil
	})
	if _, out, _ := m.CLI(t, "authz", "dry-run", server+".apps"); !strings.Contains(out, late) {
		t.Errorf("the text names no caller:\n%s", out)
	}

	var coverage struct{ Rules []matched }
	if err := askJSON(t, m, &coverage, "authz", "coverage", "-A"); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, r := range coverage.Rules {
		if r.Matched == nil {
			t.Errorf("rule %d of %s is not counted", r.Rule, r.Policy)
			continue
		}
		got[fmt.Sprint(r.Policy, " ", r.Rule)] = *r.Matched
	}
	rules := map[string]int{"apps/deny 0": 4, "apps/deny 1": 0, "apps/try 0": 3, "apps/try 1": 2, "apps/try-allow 0": 7}
	if d := cmp.Diff(rules, got); d != "" {
		t.Errorf("matches (-want +got):\n%s", d)
	}
	_, out, _ := m.CLI(t, "authz", "coverage")
	if !strings.Contains(out, "has matched no HTTP request") || strings.Count(out, "apps/") != 1 {
		t.Errorf("not the one rule that has matched nothing:\n%s", out)
	}
}
