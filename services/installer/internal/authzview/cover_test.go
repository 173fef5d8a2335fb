package authzview_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/services/installer/internal/authzview"
)

const podA = `
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: shop, labels: {app: a}}
`

// policyText is an AuthorizationPolicy of namespace shop, whose rules are for paths.
func policyText(name, action string, paths ...string) string {
	text := fmt.Sprintf("---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: %s, namespace: shop}\n"+
		"spec:\n  action: %s\n  rules:\n", name, action)
	for _, p := range paths {
		text += fmt.Sprintf("  - to: [{operation: {paths: [%q]}}]\n", p)
	}
	return text
}

// findings are what coverage says of rules, by "POLICY RULE", where it says something.
func findings(c *authzview.Coverage) map[string]string {
	out := map[string]string{}
	for _, r := range c.Rules {
		if text := r.Covered + r.Never; text != "" {
			out[fmt.Sprint(r.Policy, " ", *r.Rule)] = text
		}
	}
	return out
}

func TestCoverageIsNotCircular(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want map[string]string
	}{
		"an equal rule": {policyText("p", "ALLOW", "/a", "/b", "/c", "/a"), map[string]string{"shop/p 3": "rule 0 of shop/p"}},
		"the later of two, beyond ten": {policyText("p", "ALLOW", "/0", "/1", "/x", "/3", "/4", "/5", "/6", "/7", "/8", "/9", "/x"),
			map[string]string{"shop/p 10": "rule 2 of shop/p"}},
		"three equal rules": {policyText("p", "DENY", "/a", "/a") + policyText("q", "DENY", "/a"),
			map[string]string{"shop/p 1": "rule 0 of shop/p", "shop/q 0": "rule 0 of shop/p"}},
	} {
		got := findings(coverage(t, load(t, podA+c.text), nil))
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestWhatIsCoveredCanBeLeftOut compares decisions of random rules with and without those that are covered, or some of
// these.
func TestWhatIsCoveredCanBeLeftOut(t *testing.T) {
	paths := []string{"/a", "/a*", "/a/b", "*b", "/c", "/*", "/c*"}
	found := 0
	for seed := range 60 {
		r := rand.New(rand.NewPCG(uint64(seed), 3))
		rules := map[string][]string{}
		policy := func(without map[string]string) (text string) {
			for _, action := range []string{"ALLOW", "DENY"} {
				text += fmt.Sprintf("---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: %s, namespace: shop}\n"+
					"spec:\n  action: %s\n  rules:\n", strings.ToLower(action), action)
				left := ""
				for i, rule := range rules[action] {
					if without[fmt.Sprintf("shop/%s %d", strings.ToLower(action), i)] == "" {
						left += rule
					}
				}
				if left == "" {
					text = strings.TrimSuffix(text, "  rules:\n")
				}
				text += left
			}
			return podA + text
		}
		for action, most := range map[string]int{"ALLOW": 5, "DENY": 2} {
			for range 1 + r.IntN(most) {
				methods := []string{"", `, methods: [GET]`, `, notMethods: [GET]`}[r.IntN(3)]
				from := []string{"", "", "    from: [{source: {principals: [cluster.local/ns/shop/sa/a]}}]\n",
					"    from: [{source: {principals: [cluster.local/ns/shop/sa/a, cluster.local/ns/shop/sa/b]}}]\n"}[r.IntN(4)]
				path := paths[r.IntN(len(paths))]
				rules[action] = append(rules[action], fmt.Sprintf("  - to: [{operation: {paths: [%q]%s}}]\n%s", path, methods, from))
			}
		}
		before := load(t, policy(nil))
		covered := findings(coverage(t, before, nil))
		found += len(covered)
		if r.IntN(2) == 0 { // some of them
			for _, rule := range slices.Sorted(maps.Keys(covered)) {
				if r.IntN(2) == 0 {
					delete(covered, rule)
				}
			}
		}
		after := load(t, policy(covered))
		for _, method := range []string{"GET", "PUT"} {
			for _, path := range []string{"/a", "/ab", "/a/b", "/b", "/c", "/cd", "/x"} {
				for _, from := range []string{"outside", "sa/a.shop", "sa/b.shop"} {
					said := authzview.Request{Method: method, Path: path}
					was, is := check(t, before, from, "a", said).Results[0].Outcome, check(t, after, from, "a", said).Results[0].Outcome
					if was != is {
						t.Fatalf("seed %d: %s %s of %s is %s, and without %v %s:\n%s", seed, method, path, from, was, covered, is, policy(nil))
					}
				}
			}
		}
	}
	if found < 60 {
		t.Errorf("only %d rules are covered", found)
	}
}

func TestCoverageOfWhatProxiesNeverSee(t *testing.T) {
	const tokens = `---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec: {jwtRules: [{issuer: "https://good"}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop}
spec:
  rules:
  - from: [{source: {requestPrincipals: ["https://other/*"]}}]
  - from: [{source: {requestPrincipals: ["https://good/*"]}}]
  - from: [{source: {requestPrincipals: ["https://other/*"]}}, {source: {namespaces: [x]}}]
  - when: [{key: "request.auth.claims[iss]", values: ["https://other"]}]
  - from: [{source: {notRequestPrincipals: ["https://other/*"], namespaces: [z]}}]
`
	got := findings(coverage(t, load(t, podA+tokens+policyText("q", "ALLOW", "/é", "/%C3%A9")), nil))
	const issuer = "it asks for a token of an issuer that no RequestAuthentication verifies at these workloads"
	want := map[string]string{"shop/p 0": issuer, "shop/p 3": issuer,
		"shop/q 0": "it asks for a path with characters beyond ASCII, which proxies see percent-encoded: write é as %C3%A9"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	// A rule without an issuer verifies the tokens of any.
	anyIssuer := strings.Replace(tokens, `{issuer: "https://good"}`, `{jwksUri: "https://good/keys"}`, 1)
	want = map[string]string{"shop/p 0": "rule 2 of shop/p"}
	if got := findings(coverage(t, load(t, podA+anyIssuer), nil)); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("with tokens of any issuer: %v, want %v", got, want)
	}
}

func TestCoverageSaysWhatItDoesNotLookAt(t *testing.T) {
	var paths []string
	for i := range 199 {
		paths = append(paths, fmt.Sprint("/", i))
	}
	for more, want := range map[string]string{"": "", "/x": "at a.shop 201 rules apply: whether several of them together cover another one"} {
		text := podA + policyText("p", "ALLOW", paths...) + policyText("q", "ALLOW", append([]string{"/q"}, strings.Fields(more)...)...)
		c := coverage(t, load(t, text), nil)
		if notes := strings.Join(c.Notes, "\n"); !strings.Contains(notes, want) || (want == "") != (notes == "") {
			t.Errorf("%q: notes %q, want %q", more, notes, want)
		}
	}
}

// A policy that is refused closes what it selects, and covers nothing: it is gone when it is mended.
func TestCoverageAndDiffOfARefusedPolicy(t *testing.T) {
	m := load(t, podA+policyText("p", "ALLOW", "/a")+policyText("broken", "DENY", "/*"))
	for i := range m.Policies {
		if p := &m.Policies[i]; p.Name == "broken" {
			// As FromMesh reads what config-watcher has in the place of a refused object.
			p.Problem, p.Spec.Rules = "it is wrong", p.Spec.Rules[:1]
		}
	}
	c := coverage(t, m, nil)
	var out strings.Builder
	if err := c.Print(&out, false); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "is refused, and so what it selects is closed") || len(findings(c)) > 0 {
		t.Errorf("%v:\n%s", findings(c), text)
	}
	d, err := m.Diff(t.Context(), load(t, podA+policyText("p", "ALLOW", "/a")))
	if err != nil || len(d.Classes) != 1 || d.Classes[0].Changes[0].Before.Reason !=
		"AuthorizationPolicy shop/broken is refused, and so what it selects is closed: it is wrong" {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestCoverageAndDiffEndWithTheirContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := load(t, podA+policyText("p", authz.Allow, "/a", "/b"))
	if _, err := m.Coverage(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("coverage: %v", err)
	}
	if _, err := m.Diff(ctx, load(t, podA)); !errors.Is(err, context.Canceled) {
		t.Errorf("diff: %v", err)
	}
}

func BenchmarkCoverageOfManyRules(b *testing.B) {
	text := podA
	for i := range 40 {
		var paths []string
		for j := range 50 {
			paths = append(paths, fmt.Sprintf("/%d/%d", i, j))
		}
		text += policyText(fmt.Sprint("p", i), authz.Allow, append(paths, "/same")...)
	}
	in := authzview.Input{Refused: accepted.Refused, Stdin: func() ([]byte, error) { return []byte(text), nil }}
	m, err := authzview.Load([]string{"-"}, in)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c, err := m.Coverage(b.Context(), nil)
		if err != nil || len(findings(c)) != 39 {
			b.Fatalf("%d rules are covered, %v", len(findings(c)), err)
		}
	}
}
