package authzview

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/jwks"
	"fairlead.dev/pkg/lists"
)

// tokenRule is a rule of the RequestAuthentication owner. keyless says why its keys are missing; empty if they may be
// there.
type tokenRule struct {
	*security.JWTRule
	owner, keyless string
}

// token says what becomes of the request's token, of which Claims are said.
func (m *Mesh) token(out *Result, w *Workload, tokens []Tokens, req *authz.Request) *refusal {
	if req.Claims == nil {
		return nil
	}
	claims := req.Claims
	req.Claims = nil
	if req.TCP {
		out.note("tokens are part of HTTP requests: the claims do not count for a connection")
		return nil
	}
	if len(tokens) == 0 {
		out.note("no RequestAuthentication applies, so no token is verified: the claims do not count")
		return nil
	}
	if w.Proxy == Proxyless {
		return &refusal{requestAuthentication, tokensName(tokens[0]), fmt.Sprintf("a proxyless gRPC server cannot verify tokens: "+
			"where RequestAuthentication %s applies it denies requests with one", tokensName(tokens[0]))}
	}
	if preflight(req) {
		out.note("tokens of CORS preflight requests are not verified: the claims do not count")
		return nil
	}
	var rules []tokenRule
	for _, t := range tokens {
		if t.Problem != "" {
			return &refusal{requestAuthentication, tokensName(t), fmt.Sprintf("RequestAuthentication %s is refused, and so tokens are until a "+
				"version is accepted (the answer is 401): %s", tokensName(t), t.Problem)}
		}
		fetched := lists.Filter(t.Spec.GetJwtRules(), func(rule *security.JWTRule) bool { return rule.GetJwks() == "" })
		if t.Keyless != "" && len(fetched) > 1 {
			out.note("keys of RequestAuthentication %s are missing, and tokens that need them are answered with 401: %s", tokensName(t), t.Keyless)
		}
		for _, rule := range t.Spec.GetJwtRules() {
			r := tokenRule{rule, tokensName(t), ""}
			if _, err := jwks.Parse([]byte(rule.GetJwks())); rule.GetJwks() != "" && err != nil {
				r.keyless = err.Error()
			}
			if rule.GetJwks() == "" && len(fetched) == 1 {
				r.keyless = t.Keyless
			}
			rules = append(rules, r)
		}
	}
	if len(rules) == 0 {
		out.note("no RequestAuthentication has jwtRules, so no token is verified: the claims do not count")
		return nil
	}
	out.notePlaces(rules)
	for _, name := range comparedTexts(claims, nil) {
		out.note("claim %s is taken as a text: a token that has it as a number or a boolean meets no rule that compares it", name)
	}
	accepted, refused := judgeToken(rules, claims)
	if refused != nil {
		return refused
	}
	issuer, _ := claims["iss"].(string)
	req.Claims = authz.SplitClaims(claims, accepted.GetSpaceDelimitedClaims()...)
	out.note("the claims count if the token is valid: RequestAuthentication %s verifies those of %s, and answers others with 401",
		accepted.owner, orAnyIssuer(issuer))
	return nil
}

// judgeToken returns the rule that accepts a token with the claims, if its signature is valid, or why none does. It is
// enough that one rule of the token's issuer accepts it. A rule without an issuer is for every issuer.
func judgeToken(rules []tokenRule, claims map[string]any) (*tokenRule, *refusal) {
	issuer, _ := claims["iss"].(string)
	// In the order in which proxies have them: the first that accepts a token makes its claims known.
	slices.SortStableFunc(rules, func(a, b tokenRule) int { return strings.Compare(a.GetIssuer(), b.GetIssuer()) })
	var why, issuers []string
	var owner string
	codes := map[int]bool{}
	for i, rule := range rules {
		if rule.GetIssuer() != "" && rule.GetIssuer() != issuer {
			issuers = append(issuers, rule.GetIssuer())
			continue
		}
		allowed := rule.GetAudiences()
		switch {
		case len(allowed) > 0 && !slices.ContainsFunc(audiences(claims), func(a string) bool { return slices.Contains(allowed, a) }):
			why = append(why, fmt.Sprintf("RequestAuthentication %s takes tokens for %s alone", rule.owner, strings.Join(allowed, ", ")))
			codes[http.StatusForbidden] = true
		case rule.keyless != "":
			why = append(why, fmt.Sprintf("RequestAuthentication %s has no key that verifies tokens: %s", rule.owner, rule.keyless))
			codes[http.StatusUnauthorized] = true
		default:
			return &rules[i], nil
		}
		owner = rule.owner
	}
	if len(why) == 0 {
		slices.Sort(issuers)
		text := fmt.Sprintf("no RequestAuthentication takes tokens of issuer %q, but of %s: the answer is 401", issuer,
			strings.Join(slices.Compact(issuers), ", "))
		return nil, &refusal{requestAuthentication, "", text}
	}
	answer := strings.Join(lists.Map(slices.Sorted(maps.Keys(codes)), func(code int) string { return fmt.Sprint(code) }), " or ")
	slices.Sort(why)
	text := fmt.Sprintf("%s: the answer is %s", strings.Join(slices.Compact(why), ", and "), answer)
	return nil, &refusal{requestAuthentication, owner, text}
}

// preflight reports whether a request asks a server what it allows pages of other origins, as proxies tell it.
func preflight(req *authz.Request) bool {
	said := func(name string) bool {
		values, _ := headerOf(req.Headers, name)
		return strings.Join(values, "") != ""
	}
	return req.Method == http.MethodOptions && said("origin") && said("access-control-request-method")
}

// notePlaces notes where rules read tokens that do not read the Authorization header alone.
func (r *Result) notePlaces(rules []tokenRule) {
	for _, rule := range rules {
		var places []string
		for _, h := range rule.GetFromHeaders() {
			places = append(places, "header "+h.GetName())
		}
		for _, p := range rule.GetFromParams() {
			places = append(places, "query parameter "+p)
		}
		for _, c := range rule.GetFromCookies() {
			places = append(places, "cookie "+c)
		}
		if len(places) > 0 {
			r.note("RequestAuthentication %s reads tokens of %s from %s alone: the token is taken to stand there, and elsewhere it is not seen",
				rule.owner, orAnyIssuer(rule.GetIssuer()), strings.Join(places, ", "))
		}
	}
}

func orAnyIssuer(issuer string) string {
	if issuer == "" {
		return "any issuer"
	}
	return issuer
}

// comparedTexts lists the claims whose texts may stand for a number or a boolean of the token.
func comparedTexts(claims map[string]any, path []string) []string {
	var out []string
	for _, name := range sortedKeys(claims) {
		at := append(slices.Clone(path), name)
		switch v := claims[name].(type) {
		case map[string]any:
			out = append(out, comparedTexts(v, at)...)
		case string:
			var parsed any
			if err := json.Unmarshal([]byte(v), &parsed); err != nil {
				continue
			}
			switch parsed.(type) {
			case bool, float64:
				out = append(out, "["+strings.Join(at, "][")+"]")
			}
		}
	}
	return out
}

func audiences(claims map[string]any) []string {
	switch aud := claims["aud"].(type) {
	case string:
		return []string{aud}
	case []any:
		var out []string
		for _, a := range aud {
			if s, ok := a.(string); ok {
				out = append(out, s)
			}
		}
		return out
	}
	return nil
}
