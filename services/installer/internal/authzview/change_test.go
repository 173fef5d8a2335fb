package authzview_test

import (
	"fmt"
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/authzview"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

const changed = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: allow-web, namespace: shop}
spec:
  selector: {matchLabels: {app: reviews}}
  rules:
  - from: [{source: {principals: [td1/ns/shop/sa/web]}}]
    to: [{operation: {methods: [GET, HEAD], paths: ["/reviews/*"]}}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, jwtRules: [{issuer: "https://other"}]}
`

// untokened has no rule by which tokens are verified.
const untokened = `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}}
`

const strict = `---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
`

// meshConfig is that of shop.
var meshConfig, _, _ = strings.Cut(shop, "\n---\n")

func TestDiff(t *testing.T) {
	m := load(t, shop)
	diff := func(text string, prune bool) string {
		after, err := m.Replace([]string{clitest.File(t, text)}, accepted, prune)
		if err != nil {
			return err.Error()
		}
		d, err := m.Diff(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := d.Print(&out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for name, c := range map[string]struct {
		text  string
		prune bool
		want  []string
	}{
		"a method more, a rule less": {changed, false, []string{
			"at reviews-v1.shop:", "at reviews-v2.shop:",
			"denied -> allowed: HEAD /reviews/", "callers  spiffe://td1/ns/shop/sa/web",
			"allowed -> denied: GET /", "before   rule 1 of AuthorizationPolicy shop/allow-web (ALLOW) matches", "claim iss=https://issuer",
			`tokens of issuer "https://issuer" are no longer accepted`, `tokens of issuer "https://other" are verified`,
		}},
		"nothing": {policyOf(shop, "allow-web"), false, []string{"no decision of a policy changes"}},
		"policies that are gone": {policyOf(shop, "allow-web"), true, []string{
			"denied -> allowed", "before   rule 0 of AuthorizationPolicy istio-system/deny-admin (DENY) matches", "asks opa -> allowed",
			"at victim.bad:",
		}},
		"a policy that the mesh refuses": {strings.Replace(changed, "paths", "pathes", 1), false, []string{
			".yaml:2: AuthorizationPolicy shop/allow-web:", "pathes",
		}},
		"a policy twice": {changed + "---" + changed, false, []string{"shop/allow-web does not count: same object as at"}},
		"a provider that is gone": {strings.Replace(meshConfig, "name: opa", "name: other", 1), false, []string{
			"asks opa -> denied", "provider opa, which CUSTOM policies ask (shop/ask): MeshConfig has it no longer",
		}},
		"a provider that is another": {strings.Replace(meshConfig, "service: opa.shop.svc.cluster.local, port: 9000",
			"service: opa2.shop.svc.cluster.local, port: 9000, failOpen: true", 1), false, []string{
			"provider opa, which CUSTOM policies ask (shop/ask): envoyExtAuthzGrpc.failOpen: not set -> true; " +
				"envoyExtAuthzGrpc.service: opa.shop.svc.cluster.local -> opa2.shop.svc.cluster.local\n",
		}},
		"a policy without a namespace": {strings.Replace(policyText("x", "DENY", "/a"), ", namespace: shop", "", 1), false, []string{
			".yaml:2: AuthorizationPolicy default/x applies to no workload with a proxy: namespace default has none: correct metadata.namespace " +
				"(an object that names none is in namespace default)",
		}},
		"a policy for nobody's labels": {selecting("shop", "{app: nobody}"), false, []string{
			"AuthorizationPolicy shop/x applies to no workload with a proxy: none of namespace shop has the labels app=nobody: correct " +
				"spec.selector.matchLabels",
		}},
		"tokens for nobody's labels, everywhere": {strings.NewReplacer("shop", "istio-system", "app: reviews", "a: b").Replace(untokened),
			false, []string{"RequestAuthentication istio-system/tokens applies to no workload with a proxy: none has the labels a=b"}},
		"paths are normalised otherwise": {strings.Replace(meshConfig, "MERGE_SLASHES", "BASE", 1), false, []string{
			"pathNormalization changes from MERGE_SLASHES to BASE",
		}},
		"another trust domain": {strings.Replace(meshConfig, "td1", "td2", 1), false, []string{"the trust domain changes from td1 to td2"}},
		"tokens are no longer verified": {untokened, false, []string{
			"allowed -> denied", "before   rule 1 of AuthorizationPolicy shop/allow-web (ALLOW) matches", "are no longer verified",
		}},
		"modes of mutual TLS": {changed + strict, false, []string{"PeerAuthentication shop/default of the change is passed over"}},
		"no policy":           {"apiVersion: v1\nkind: Service\nmetadata: {name: x}\n", false, []string{"no AuthorizationPolicy"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := diff(c.text, c.prune)
			for _, w := range c.want {
				if !strings.Contains(out, w) {
					t.Errorf("%q is missing:\n%s", w, out)
				}
			}
		})
	}
}

// selecting is a policy for workloads with labels.
func selecting(namespace, labels string) string {
	return fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: x, namespace: %s}\n"+
		"spec: {selector: {matchLabels: %s}, action: DENY, rules: [{}]}\n", namespace, labels)
}

func TestAnotherProviderIsAChange(t *testing.T) {
	m := load(t, shop)
	for text, want := range map[string]bool{
		meshConfig: false,
		strings.Replace(meshConfig, "port: 9000", "port: 9001", 1):                                          true,
		strings.Replace(meshConfig, "extensionProviders:", "extensionProviders:\n    - {name: unasked}", 1): false,
	} {
		after, err := m.Replace([]string{clitest.File(t, text)}, accepted, false)
		if err != nil {
			t.Fatal(err)
		}
		d, err := m.Diff(t.Context(), after)
		if err != nil || d.Changed() != want {
			t.Errorf("%s: %+v, %v", text, d, err)
		}
	}
}

// policyOf is the policy of a name in a text of objects.
func policyOf(text, name string) string {
	for doc := range strings.SplitSeq(text, "\n---\n") {
		if strings.Contains(doc, "name: "+name+",") && strings.Contains(doc, "AuthorizationPolicy") {
			return doc
		}
	}
	return ""
}

const rules = `
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: shop, labels: {app: a}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: allow, namespace: shop}
spec:
  rules:
  - to: [{operation: {paths: ["/a*"]}}]
  - to: [{operation: {paths: ["/a/b"], methods: [GET]}}]
  - to: [{operation: {paths: ["/x"], notPaths: ["/x*"]}}]
  - to: [{operation: {paths: ["/zadmin/x"]}}]
  - to: [{operation: {paths: ["/c"], methods: [GET]}}]
  - to: [{operation: {paths: ["/c"], notMethods: [GET]}}]
  - to: [{operation: {paths: ["/c"], ports: ["80"]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {paths: ["/zadmin*"]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody, namespace: shop}
spec: {selector: {matchLabels: {app: none}}, rules: [{}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: empty, namespace: shop}
spec: {}
`

func coverage(t *testing.T, m *authzview.Mesh, counts *authzview.Counts) *authzview.Coverage {
	t.Helper()
	c, err := m.Coverage(t.Context(), counts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCoverage(t *testing.T) {
	m := load(t, rules)
	counts := &authzview.Counts{Rules: map[string]uint64{"ns[shop]-policy[allow]-rule[0]": 7}, RulesOf: map[string]bool{}}
	for _, w := range m.Workloads {
		counts.RulesOf[w.ID()] = true
	}
	got := map[string]authzview.RuleCoverage{}
	for _, r := range coverage(t, m, counts).Rules {
		name := r.Policy
		if r.Rule != nil {
			name += string(rune('0' + *r.Rule))
		}
		got[name] = r
	}
	for name, want := range map[string]struct{ never, covered string }{
		"shop/allow0": {"", ""},
		"shop/allow1": {"", "rule 0 of shop/allow"},
		"shop/allow2": {"what it asks for excludes each other", ""},
		"shop/allow3": {"", "rule 0 of shop/deny, which denies"},
		"shop/allow4": {"", ""},
		"shop/allow5": {"", ""},
		"shop/allow6": {"", "several rules together"},
		"shop/deny0":  {"", ""},
		"shop/empty":  {"", ""},
	} {
		r, ok := got[name]
		if !ok || r.Never != want.never || r.Covered != want.covered {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := got["shop/nobody0"]; r.Workloads != 0 || !r.Useless() {
		t.Errorf("a policy for no workload: %+v", r)
	}
	if r := got["shop/allow0"]; r.Workloads != 1 || *r.Matched != 7 || r.Useless() {
		t.Errorf("a rule that has matched: %+v", r)
	}
	if r := got["shop/deny0"]; *r.Matched != 0 || !r.Useless() {
		t.Errorf("a rule that has not matched: %+v", r)
	}
	clear(counts.RulesOf)
	for _, r := range coverage(t, m, counts).Rules {
		switch {
		case r.Policy == "shop/allow" && *r.Rule == 0:
			if r.Matched == nil || *r.Matched != 7 {
				t.Errorf("a rule that has matched, and a proxy that does not count: %+v", r)
			}
		case r.Matched != nil && r.Workloads > 0, r.Policy == "shop/deny" && r.Useless():
			t.Errorf("the proxy does not count: %+v", r)
		}
	}
}

func TestDenial(t *testing.T) {
	m := load(t, shop)
	to, err := m.Target("reviews-v2", "")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"rbac_access_denied_matched_policy[ns[istio-system]-policy[deny-admin]-rule[0]]": "istio-system/deny-admin (DENY) matched",
		"rbac_access_denied_matched_policy[none]":                                        "no rule of the ALLOW policies matched: shop/allow-web",
		"[ns[shop]-policy[gone]-rule[1]]":                                                "which the mesh no longer has",
		"[ns[shop]-policy[ask]-rule[4]]":                                                 "which the policy no longer has",
		"ext_authz_denied":                                                               "opa",
		"jwt_authn_access_denied{Jwt_is_expired}":                                        "shop/tokens",
		"ext_authz_error":                                                                "did not answer, or failed, and so the request was refused: opa (opa.shop.svc.cluster.local:9000)",
		`"GET / HTTP/1.1" 403 UAEX - - "-"`:                                              "refused the request or did not answer: opa (opa",
		"rbac_access_denied_matched_policy[istio-ext-authz-opa-ns[shop]-policy[ask]-rule[0]-deny-due-to-bad-CUSTOM-action]": "rule 0 of " +
			`AuthorizationPolicy shop/ask (CUSTOM) matched, and what it matches is denied, since provider "opa" of the policy could not be asked`,
		"rbac_access_denied_matched_policy[ns[shop]-policy[ask]-rule[99999999999999999999]]": "the text names no rule",
		"rbac_access_denied_matched_policy[ns[shop]-policy[ask]-rule[-1]] [none]":            "the text names no rule",
		"rbac_access_denied_matched_policy[none] [x]":                                        "no rule of the ALLOW policies",
		"ns[bad]-policy[broken]-rule[0]":                                                     "is refused, and so what it selects is closed",
	} {
		d, err := m.Denial(to, text)
		if err != nil || !authzview.IsDenial(text) || !strings.Contains(d.Reason, want) {
			t.Errorf("%s: %+v, %v", text, d, err)
		}
	}
	for name, want := range map[string]string{"reviews-v1": "it does not apply to reviews-v1.shop, so the line is of another", "reviews": ""} {
		to, err := m.Target(name, "")
		if err != nil {
			t.Fatal(err)
		}
		d, err := m.Denial(to, "ns[shop]-policy[ask]-rule[0]")
		if err != nil || !strings.Contains(d.Reason, want) || strings.Contains(d.Reason, "apply") != (want != "") {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
	gone := load(t, strings.Replace(shop, "name: opa\n", "name: other\n", 1))
	d, err := gone.Denial(to, "istio-ext-authz-opa-ns[shop]-policy[ask]-rule[0]-deny-due-to-bad-CUSTOM-action")
	if err != nil || !strings.Contains(d.Reason, `provider "opa" of the policy cannot be asked: MeshConfig has none of that name; correct`) {
		t.Errorf("%+v, %v", d, err)
	}
	d, err = m.Denial(to, `"GET / HTTP/1.1" 403 - rbac_access_denied_matched_policy[ns[istio-system]-policy[deny-admin]-rule[0]] - "-"`)
	if err != nil || !strings.Contains(d.Text, "- /reviews/admin*") {
		t.Errorf("%+v, %v", d, err)
	}
	if authzview.IsDenial("reviews:9080") {
		t.Error("a host is taken for a denial")
	}
}

// A version that is refused does not take the place of one that counts.
func TestAnObjectTwice(t *testing.T) {
	file := clitest.File(t, policyOf(shop, "deny-admin")+"\n---\n"+policyOf(shop, "deny-admin"))
	for refused, want := range map[int]string{1: file + ":6", 6: file + ":1"} {
		in := authzview.Input{Refused: func([]string, []byte) (map[string]string, error) {
			return map[string]string{fmt.Sprintf("%s:%d", file, refused): "wrong"}, nil
		}}
		m, err := authzview.Load([]string{file}, in)
		if err != nil {
			t.Fatal(err)
		}
		if p := m.Policies; len(p) != 1 || p[0].Closed || p[0].Location != want {
			t.Errorf("%+v, want that at %s", p, want)
		}
		if note := fmt.Sprintf("%s:%d: AuthorizationPolicy istio-system/deny-admin does not count: wrong", file, refused); len(m.Notes) != 1 ||
			m.Notes[0] != note {
			t.Errorf("notes %q, want %q", m.Notes, note)
		}
	}
}

func TestCoverageWithoutTokens(t *testing.T) {
	for text, want := range map[string]string{
		shop: "",
		policyOf(shop, "allow-web") + "\n---\n" + deployment: "it asks for a token",
	} {
		for _, r := range coverage(t, load(t, text), nil).Rules {
			if r.Policy == "shop/allow-web" && *r.Rule == 1 && (!strings.Contains(r.Never, want) || (r.Never == "") != (want == "")) {
				t.Errorf("%q, want %q", r.Never, want)
			}
		}
	}
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: reviews, namespace: shop}
spec: {template: {metadata: {labels: {app: reviews}}, spec: {containers: [{name: app}]}}}
`

func TestADenialBeforeAChange(t *testing.T) {
	m := load(t, shop)
	to, err := m.Target("web.shop", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"jwt_authn_access_denied{Jwt_is_expired}", "ext_authz_denied"} {
		if d, err := m.Denial(to, text); err != nil || !strings.HasSuffix(d.Reason, ": none any more, so it was refused before a change") {
			t.Errorf("%s: %+v, %v", text, d, err)
		}
	}
}
