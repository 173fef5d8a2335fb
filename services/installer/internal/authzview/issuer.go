package authzview

import (
	"slices"

	"fairlead.dev/pkg/authz"
)

// noIssuer is why a rule matches nothing where no token of the issuer that it asks for is verified.
const noIssuer = "it asks for a token of an issuer that no RequestAuthentication verifies at these workloads"

// sentBy makes the rules of policies at workloads to which RequestAuthentications apply, as seenBy does, without what
// asks for a token of an issuer that none of them verifies: a request with such a token is answered with 401.
func (m *Mesh) sentBy(policies []Policy, tokens []Tokens) *authz.Set {
	var issuers []string
	for _, t := range tokens {
		for _, rule := range t.Spec.GetJwtRules() {
			if rule.GetIssuer() == "" {
				return m.seenBy(policies, tokens) // which verifies tokens of any issuer
			}
			issuers = append(issuers, rule.GetIssuer())
		}
	}
	foreign := func(c authz.Clause) bool {
		return slices.ContainsFunc(c, func(m authz.Match) bool { return asksOther(m, issuers) })
	}
	return m.seenBy(policies, tokens).Map(func(r *authz.Rule) *authz.Rule {
		if r.HTTP == nil || !slices.ContainsFunc(slices.Concat(r.HTTP.From, r.HTTP.To, []authz.Clause{r.HTTP.When}), foreign) {
			return r
		}
		out := *r
		out.HTTP = &authz.Form{When: r.HTTP.When, From: slices.DeleteFunc(slices.Clone(r.HTTP.From), foreign),
			To: slices.DeleteFunc(slices.Clone(r.HTTP.To), foreign)}
		if foreign(r.HTTP.When) || len(r.HTTP.From) > 0 && len(out.HTTP.From) == 0 || len(r.HTTP.To) > 0 && len(out.HTTP.To) == 0 {
			out.HTTP = nil
			if out.TCP == nil {
				out.Never = noIssuer
			}
		}
		return &out
	})
}

// asksOther reports whether a match asks for a token of none of the issuers.
func asksOther(m authz.Match, issuers []string) bool {
	if m.Not || m.Field != authz.RequestPrincipal && (m.Field != authz.Claim || !slices.Equal(m.Key, []string{"iss"})) {
		return false
	}
	return !slices.ContainsFunc(m.Values, func(v authz.Value) bool { return slices.ContainsFunc(issuers, v.String.Matches) })
}
