package authzview

import (
	"maps"
	"slices"

	"fairlead.dev/pkg/authz"
)

// matches lists the matches of all rules.
func matches(set *authz.Set, tcp bool) []authz.Match {
	var out []authz.Match
	for _, g := range set.ByAction() {
		for _, r := range g.Rules.List {
			f := r.HTTP
			if tcp {
				f = r.TCP
			}
			if f == nil {
				continue
			}
			for _, c := range slices.Concat(f.From, f.To, []authz.Clause{f.When}) {
				out = append(out, c...)
			}
		}
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// noToken is why a rule matches nothing where no token is verified.
const noToken = "it asks for a token, and no RequestAuthentication verifies any at these workloads"

// seenBy makes the rules of policies at workloads to which RequestAuthentications apply. Where none of them verifies
// tokens, no request has a claim: the rules are without what is true then, and match nothing that needs one.
func (m *Mesh) seenBy(policies []Policy, tokens []Tokens) *authz.Set {
	set := m.Compile(policies)
	verified := slices.ContainsFunc(tokens, func(t Tokens) bool { return len(t.Spec.GetJwtRules()) > 0 })
	refused := slices.ContainsFunc(tokens, func(t Tokens) bool { return t.Problem != "" })
	if verified && !refused {
		return set
	}
	return set.Map(withoutToken)
}

// withoutToken returns a rule as it is for requests without a token.
func withoutToken(r *authz.Rule) *authz.Rule {
	if r.HTTP == nil {
		return r
	}
	out := *r
	from, some := clausesWithoutToken(r.HTTP.From)
	to, more := clausesWithoutToken(r.HTTP.To)
	when, met := clauseWithoutToken(r.HTTP.When)
	out.HTTP = &authz.Form{From: from, To: to, When: when}
	if !some || !more || !met {
		out.HTTP = nil
		if out.TCP == nil {
			out.Never = noToken
		}
	}
	return &out
}

// clausesWithoutToken returns the clauses that a request without a token may meet; some is false if there were only
// others.
func clausesWithoutToken(list []authz.Clause) (out []authz.Clause, some bool) {
	for _, c := range list {
		if left, met := clauseWithoutToken(c); met {
			out = append(out, left)
		}
	}
	return out, len(out) > 0 || len(list) == 0
}

func clauseWithoutToken(c authz.Clause) (left authz.Clause, met bool) {
	for _, m := range c {
		switch {
		case m.Field != authz.Claim && m.Field != authz.RequestPrincipal:
			left = append(left, m)
		case !m.Not:
			return nil, false
		}
	}
	return left, true
}
