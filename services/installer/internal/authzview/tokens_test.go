package authzview_test

import (
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/authzview"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

const server = "apiVersion: v1\nkind: Pod\nmetadata: {name: server, namespace: shop}\nspec: {containers: [{name: istio-proxy}]}\n"

// authenticate is a RequestAuthentication with the jwtRules.
func authenticate(name, rules string) string {
	return "---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: " + name + ", namespace: shop}\n" +
		"spec: {jwtRules: " + rules + "}\n"
}

// policy is an AuthorizationPolicy with the fields of a spec.
func policy(name, spec string) string {
	return "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " + name + ", namespace: shop}\n" +
		"spec: {" + spec + "}\n"
}

// TestTokens has what Envoy does with the requirement that xds-server makes of all rules.
func TestTokens(t *testing.T) {
	const anybody = "rules: [{from: [{source: {requestPrincipals: ['*']}}]}]"
	preflight := authzview.Request{Method: "OPTIONS", Headers: map[string][]string{"origin": {"http://a"}, "access-control-request-method": {"GET"}}}
	token := func(iss, aud string) authzview.Request {
		return authzview.Request{Claims: map[string]any{"iss": iss, "sub": "s", "aud": aud}}
	}
	for name, c := range map[string]struct {
		objects string
		request authzview.Request
		// want are the outcome, and parts of what is printed.
		want []string
	}{
		"the second rule takes the audience": {authenticate("r", "[{issuer: i, audiences: [a]}, {issuer: i, audiences: [b]}]"), token("i", "b"),
			[]string{"allowed"}},
		"another object takes any audience": {authenticate("r1", "[{issuer: i, audiences: [a]}]") + authenticate("r2", "[{issuer: i}]"),
			token("i", "z"), []string{"allowed", "RequestAuthentication shop/r2 verifies those of i"}},
		"no rule takes the audience": {authenticate("r", "[{issuer: i, audiences: [a]}, {issuer: i, audiences: [b]}]"), token("i", "c"),
			[]string{"denied", "takes tokens for a alone", "takes tokens for b alone: the answer is 403"}},
		"a rule for all issuers":    {authenticate("r", "[{jwksUri: 'https://a/k'}]"), token("any", ""), []string{"allowed"}},
		"a rule for another issuer": {authenticate("r", "[{issuer: i}]"), token("j", ""), []string{"denied", "the answer is 401"}},
		"a broken object sorts second": {authenticate("a", "[{issuer: i}]") + authenticate("b", "[{isuer: i}]"), token("i", ""),
			[]string{"denied", "shop/b is refused", "401"}},
		"keys without a usable one": {authenticate("r", "[{issuer: i, jwks: '{\"keys\": []}'}]"), token("i", ""),
			[]string{"denied", "no key that verifies tokens", "401"}},
		"a place of its own": {authenticate("r", "[{issuer: i, fromHeaders: [{name: x-t}], fromParams: [p], fromCookies: [c]}]"), token("i", ""),
			[]string{"allowed", "reads tokens of i from header x-t, query parameter p, cookie c alone"}},
		"a number": {authenticate("r", "[{issuer: i}]"), authzview.Request{Claims: map[string]any{"iss": "i", "a": map[string]any{"b": "5"}}},
			[]string{"allowed", "claim [a][b] is taken as a text"}},
		"a preflight has no principal": {authenticate("r", "[{issuer: i}]") + policy("p", anybody), with(preflight, "i"),
			[]string{"denied", "no rule of the ALLOW policies matches", "preflight"}},
		"a preflight of a stranger":   {authenticate("r", "[{issuer: i}]"), with(preflight, "j"), []string{"allowed", "preflight"}},
		"OPTIONS without its headers": {authenticate("r", "[{issuer: i}]"), with(authzview.Request{Method: "OPTIONS"}, "j"), []string{"denied"}},
	} {
		t.Run(name, func(t *testing.T) {
			mustAnswer(t, check(t, load(t, server+c.objects), "outside", "server", c.request), c.want...)
		})
	}
}

func with(r authzview.Request, issuer string) authzview.Request {
	r.Claims = map[string]any{"iss": issuer, "sub": "s"}
	return r
}

// mustAnswer fails unless the first result has the outcome, and what is printed has the other texts.
func mustAnswer(t *testing.T, a *authzview.Answer, want ...string) {
	t.Helper()
	var out strings.Builder
	if err := a.Print(&out); err != nil {
		t.Fatal(err)
	}
	if a.Results[0].Outcome != want[0] {
		t.Errorf("%s, want %s:\n%s", a.Results[0].Outcome, want[0], out.String())
	}
	for _, w := range want[1:] {
		if !strings.Contains(out.String(), w) {
			t.Errorf("%q is missing:\n%s", w, out.String())
		}
	}
}

// TestProxylessServersDenyTokens: they cannot verify one.
func TestProxylessServersDenyTokens(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: server, namespace: shop}\n" +
		"spec: {containers: [{name: istio-proxy, env: [{name: ISTIO_META_GENERATOR, value: grpc}]}]}\n"
	m, err := authzview.Load([]string{clitest.File(t, pod+authenticate("r", "[{issuer: i}]"))}, accepted)
	if err != nil {
		t.Fatal(err)
	}
	mustAnswer(t, check(t, m, "outside", "server", with(authzview.Request{}, "i")), "denied", "a proxyless gRPC server cannot verify tokens")
}
