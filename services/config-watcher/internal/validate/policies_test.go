package validate

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
)

// TestAuthorizationPolicies: an AuthorizationPolicy gets Istio's verdict, with the field, the value and the remedy.
func TestAuthorizationPolicies(t *testing.T) {
	policy := func(spec string) string { return of("AuthorizationPolicy", spec) }
	source := func(source string) string { return policy("{rules: [{from: [{source: {" + source + "}}]}]}") }
	operation := func(operation string) string { return policy("{rules: [{to: [{operation: {" + operation + "}}]}]}") }
	when := func(when string) string { return policy("{rules: [{when: [{" + when + "}]}]}") }
	custom := func(rule string) string {
		return policy("{action: CUSTOM, provider: {name: opa}, rules: [{" + rule + "}]}")
	}
	for _, c := range []struct{ name, yaml, want string }{
		{"nothing allowed", policy("{}"), ""},
		{"everything denied", policy("{action: DENY, rules: [{}]}"), ""},
		{"deny without rules", policy("{action: DENY}"), `spec.rules: DENY without rules never applies; add the rule \{\}`},
		{"custom", custom("to: [{operation: {paths: [/admin*]}}]"), ""},
		{"custom without rules", policy("{action: CUSTOM, provider: {name: opa}}"), `CUSTOM without rules`},
		{"custom without provider", policy("{action: CUSTOM, rules: [{}]}"), `spec.provider.name: missing`},
		{"custom by principal", custom("from: [{source: {principals: ['*']}}]"), `principals: not possible with action CUSTOM`},
		{"custom by claim", custom("when: [{key: 'request.auth.claims[a]', values: [b]}]"), `key: "request.auth.claims\[a\]": not possible`},
		{"custom by trust domain", custom("when: [{key: source.trustDomain, values: [b]}]"), `not possible with action CUSTOM`},
		{"provider without custom", policy("{provider: {name: opa}, rules: [{}]}"), `spec.provider: "opa": only action CUSTOM`},
		{"selector and targets", policy("{selector: {matchLabels: {a: b}}, " +
			"targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: g}]}"),
			`only one of selector`},
		{"target", policy("{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: g}]}"), ""},
		{"empty source", source(""), `rules\[0\].from\[0\].source: is empty`},
		{"no source", policy("{rules: [{from: [{}]}]}"), `rules\[0\].from\[0\].source: missing`},
		{"empty operation", operation(""), `rules\[0\].to\[0\].operation: is empty`},
		{"no operation", policy("{rules: [{to: [{}]}]}"), `rules\[0\].to\[0\].operation: missing`},
		{"empty principal", source("principals: [a, '']"), `source.principals\[1\]: principal is empty`},
		{"address", source("ipBlocks: [10.0.0.1, 10.0.0.0/8, 'fd00::/8']"), ""},
		{"address that is none", source("notRemoteIpBlocks: [10.0.0.256]"), `notRemoteIpBlocks\[0\]: "10.0.0.256": not a valid IP`},
		{"address with a zone", source("ipBlocks: ['fe80::1%eth0']"), `"fe80::1%eth0": an address of a packet has no zone; remove "%eth0"`},
		{"service accounts", source("serviceAccounts: [a, b/c]"), ""},
		{"service account with a wildcard", source("serviceAccounts: [a*]"), `wildcards are not possible`},
		{"service account of three parts", source("notServiceAccounts: [a/b/c]"), `"a/b/c": not a service account`},
		{"service account without a namespace", source("serviceAccounts: [/c]"), `"/c": not a service account`},
		{"service accounts with principals", source("serviceAccounts: [a], principals: [b]"), `cannot be combined`},
		{"seventeen service accounts", source("serviceAccounts: [a, b, c, d, e, f, g, h, i, j, k, l, m, aa, o, p, q]"), `: 17: more than 16`},
		{"trust domains", source("trustDomains: ['*.a', 'b*', '*', c]"), ""},
		{"trust domain with a slash", source("trustDomains: [a/b]"), `not a trust domain`},
		{"trust domain with two wildcards", source("notTrustDomains: ['*a*']"), `only one wildcard`},
		{"trust domain with an inner wildcard", source("trustDomains: ['a*b']"), `only one wildcard`},
		{"ports", operation("ports: ['0', '65535']"), ""},
		{"port that is none", operation("ports: ['65536']"), `operation.ports\[0\]: "65536": not a port`},
		{"port with a sign", operation("notPorts: ['+80']"), `not a port`},
		{"templates", operation("paths: ['/a/{*}/b/{**}', '/{**}/b', '/{*}']"), ""},
		{"template behind the rest", operation("paths: ['/{**}/{*}']"), `the last template`},
		{"template within a segment", operation("paths: ['/a{*}/b']"), `braces are for whole segments`},
		{"brace without template", operation("notPaths: ['/{id}']"), `notPaths\[0\]: "/\{id\}": braces`},
		{"two slashes beside a template", operation("paths: ['/a//{*}']"), `segment "" cannot stand beside a template`},
		{"wildcard beside a template", operation("paths: ['/{*}/a*']"), `segment "a\*" cannot stand`},
		{"path with a control character", operation("paths: [\"/a\\nb\"]"), `contains a control character`},
		{"header", when("key: 'request.headers[x-a]', values: [b]"), ""},
		{"header without a name", when("key: 'request.headers[]', values: [b]"), `needs a name in brackets; write "request.headers\[name\]"`},
		{"header with a line break", when(`key: "request.headers[a\nb]", values: [b]`), `contains a line break`},
		{"no values", when("key: source.ip"), `when\[0\]: names no value`},
		{"no key", when("values: [a]"), `when\[0\].key: missing`},
		{"unknown attribute", when("key: source.principle, values: [a]"), `unknown attribute; did you mean "source.principal"`},
		{"attribute of former versions", when("key: 'destination.labels[a]', values: [a]"), `use selector.matchLabels`},
		{"condition's address", when("key: remote.ip, notValues: [a]"), `notValues\[0\]: "a": not a valid IP`},
		{"condition's port", when("key: destination.port, values: [http]"), `values\[0\]: "http": not a port`},
		{"condition's empty value", when("key: connection.sni, values: ['']"), `values\[0\]: value is empty`},
		{"condition's trust domain", when("key: source.trustDomain, values: ['a*b']"), `only one wildcard`},
		{"filter's metadata", when("key: 'experimental.envoy.filters.a.b[c]', values: [d]"), ""},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, c.yaml, c.want) })
	}
}

// TestDryRun: an AuthorizationPolicy that allows or denies can be tried.
func TestDryRun(t *testing.T) {
	try := func(kind, value, spec string) string {
		return "apiVersion: security.istio.io/v1\nkind: " + kind + "\nmetadata: {name: a, annotations: {istio.io/dry-run: " + value +
			"}}\nspec: " + spec + "\n"
	}
	for _, c := range []struct{ name, yaml, want string }{
		{"allow", try("AuthorizationPolicy", `"true"`, "{}"), ""},
		{"deny", try("AuthorizationPolicy", `"false"`, "{action: DENY, rules: [{}]}"), ""},
		{"no boolean", try("AuthorizationPolicy", `"yes"`, "{}"), `dry-run"\]: "yes": neither true nor false`},
		{"audit", try("AuthorizationPolicy", `"true"`, "{action: AUDIT}"), `action AUDIT cannot be tried`},
		{"another kind", try("RequestAuthentication", `"true"`, "{}"), `a RequestAuthentication cannot be tried`},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, c.yaml, c.want) })
	}
}

// TestRequestAuthentications: a RequestAuthentication gets Istio's verdict.
func TestRequestAuthentications(t *testing.T) {
	rule := func(rule string) string { return of("RequestAuthentication", "{jwtRules: [{"+rule+"}]}") }
	keys := func(keys string) string { return rule("issuer: a, jwks: '" + keys + "'") }
	const public = `{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
	for _, c := range []struct{ name, yaml, want string }{
		{"no rules", of("RequestAuthentication", "{}"), ""},
		{"discovery", rule("issuer: 'https://a.com'"), ""},
		{"everything", rule("issuer: a, jwksUri: 'https://a.com/k', audiences: [b], fromHeaders: [{name: x, prefix: 'Bearer '}], " +
			"fromParams: [c], fromCookies: [d], outputPayloadToHeader: e, outputClaimToHeaders: [{header: f, claim: g.h}], " +
			"forwardOriginalToken: true, timeout: 5s, spaceDelimitedClaims: [i]"), ""},
		{"neither issuer nor keys", rule("audiences: [a]"), `jwtRules\[0\].issuer: missing`},
		{"empty audience", rule("issuer: a, audiences: ['']"), `audiences\[0\]: audience is empty`},
		{"scheme of the keys", rule("issuer: a, jwksUri: 'file:///etc/passwd'"), `jwksUri: "file:///etc/passwd": keys are fetched by HTTP`},
		{"port of the keys", rule("issuer: a, jwksUri: 'https://a.com:99999/'"), `not a port: "99999"`},
		{"address of the keys", rule("issuer: a, jwksUri: 'https://a b/'"), `not a URL`},
		{"two sources of keys", rule("issuer: a, jwksUri: 'https://a.com/', jwks: '{\"keys\":[]}'"), `only one of jwks and jwksUri`},
		{"header without a name", rule("issuer: a, fromHeaders: [{prefix: a}]"), `fromHeaders\[0\].name: missing`},
		{"header with a line break", rule(`issuer: a, fromHeaders: [{name: "a\rb"}]`), `contains a line break`},
		{"prefix with a line break", rule(`issuer: a, fromHeaders: [{name: a, prefix: "a\nb"}]`), `prefix: "a\\nb": contains a line break`},
		{"empty parameter", rule("issuer: a, fromParams: ['']"), `fromParams\[0\]: parameter is empty`},
		{"empty cookie", rule("issuer: a, fromCookies: ['']"), `fromCookies\[0\]: cookie is empty`},
		{"output without a claim", rule("issuer: a, outputClaimToHeaders: [{header: a}]"), `outputClaimToHeaders\[0\].claim: missing`},
		{"output without a header", rule("issuer: a, outputClaimToHeaders: [{claim: a}]"), `outputClaimToHeaders\[0\].header: missing`},
		{"output to no header", rule("issuer: a, outputClaimToHeaders: [{claim: a, header: 'a b'}]"), `"a b": not a valid header name`},
		{"timeout", rule("issuer: a, timeout: 0.0001s"), `timeout: 100µs: shorter than 1ms`},
		{"key set", keys(`{"keys":[` + public + `]}`), ""},
		{"key alone", keys(public), ""},
		{"key alone that is a secret", keys(`{"kty":"oct","k":"AAAA"}`), "warns: every token of the issuer is refused: .*kty oct is a secret"},
		{"no keys", keys(`{"keys":[]}`), "warns: every token of the issuer is refused: .*the set is empty"},
		{
			"key of a curve that proxies lack", keys(`{"keys":[` + public + `,{"kty":"EC","crv":"P-1","x":"AA","y":"AA"}]}`),
			"warns: keys are left out",
		},
		{"key with a certificate that is none", keys(`{"keys":[{"kty":"RSA","n":"AA","e":"AQAB","x5c":["AA"]}]}`), `no list of certificates`},
		{"keys that are no JSON", keys(`-----BEGIN PUBLIC KEY-----`), `jwks: not a JSON object`},
		{"keys that are no list", keys(`{"keys":{}}`), `its keys are no list`},
		{"key of no type", keys(`{"keys":[{}]}`), `key 0 has the unknown type \(kty\) ""`},
		{"key without its curve", keys(`{"keys":[` + public + `,{"kty":"EC","x":"AA","y":"AA"}]}`), `key 1 has no "crv"`},
		{"key that is not encoded", keys(`{"keys":[{"kty":"RSA","n":"?","e":"AQAB"}]}`), `has a "n" that is not encoded`},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, c.yaml, c.want) })
	}
}

// TestNothingIsIgnoredOfAcceptedPolicies: whatever a policy says that is accepted has a meaning in the rules that
// proxies get, or a warning says that it has none.
func TestNothingIsIgnoredOfAcceptedPolicies(t *testing.T) {
	values := []string{"", "*", "**", "a", "a*", "*a", "a*b", "*a*", "/", "//", "/{*}", "/{**}", "/{**}/{*}", "/{*}x",
		"{*}", "/a//{*}", "/{a}",
		"/}", "a/b", "a/b/c", "10.0.0.1", "10.0.0.0/8", "10.0.0.0/33", "fe80::1%eth0", "::ffff:10.0.0.1", "::/0", "0", "80", "65536", "+1", "08", "[a]", "[",
		"\u00e9", "spiffe://a/ns/b/sa/c"}
	fields := map[string][]string{
		"from: [{source: {%s: [%s]}}]":  {"principals", "requestPrincipals", "namespaces", "serviceAccounts", "trustDomains", "ipBlocks", "remoteIpBlocks"},
		"to: [{operation: {%s: [%s]}}]": {"hosts", "ports", "methods", "paths"},
		"when: [{key: '%s', values: [%s]}]": {"request.headers[a]", "request.headersa[b]", "request.headers.a[b]",
			"request.headers[a]b]", "request.headers", "source.ip", "remote.ip", "source.namespace", "source.serviceAccount", "source.principal", "source.trustDomain",
			"request.auth.principal", "request.auth.audiences", "request.auth.presenter", "request.auth.claims[a][b]", "request.auth.claims[a[b]]",
			"request.auth.claimsa[b]", "request.auth.claims[]", "destination.ip", "destination.port", "connection.sni",
			"experimental.envoy.filters.a[b]", "experimental.envoy.filters.[b]", "experimental.envoy.filters.a"},
	}
	accepted, warned := 0, 0
	for form, names := range fields {
		for _, name := range names {
			for _, v := range values {
				text := of("AuthorizationPolicy", "{action: DENY, rules: [{"+fmt.Sprintf(form, name, strconv.Quote(v))+"}]}")
				o, _ := judge(t, text)
				if o == nil {
					continue
				}
				accepted++
				set := authz.Compile([]authz.Policy{{Namespace: "apps", Name: "p", Spec: o.Body.(*security.AuthorizationPolicy)}},
					authz.Options{TrustDomain: "cluster.local"})
				ignored := set.Deny.Enforced.List[0].Ignored
				if len(ignored) == 0 {
					continue
				}
				warned++
				if !strings.Contains(o.Warnings.Error(), "no attribute: the rule denies as without it") {
					t.Errorf("%s: ignored is %v, warnings are %v", text, ignored, o.Warnings)
				}
			}
		}
	}
	if accepted < 300 || warned == 0 {
		t.Errorf("%d were accepted, and %d have a part that is ignored", accepted, warned)
	}
}
