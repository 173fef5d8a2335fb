package authz

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Finding is what one rule has to do with a request.
type Finding struct {
	Action   string
	Provider string
	DryRun   bool
	// Rule is nil for a policy without rules, which Policy ("namespace/name") names.
	Rule   *Rule
	Policy string
	// Matches says whether the rule matches; Why says, if it does not, what of it fails first.
	Matches bool
	Why     string
}

// Explain says of each rule, in the order of evaluation, whether it matches a request, and why not.
func (s *Set) Explain(r Request) []Finding {
	var out []Finding
	i := 0
	for g, action := range s.groups() {
		provider := ""
		if action == Custom {
			provider = s.Custom[i].Name
			i++
		}
		for _, rules := range []*Rules{&g.Enforced, &g.DryRun} {
			for _, f := range rules.explain(&r) {
				f.Action, f.Provider, f.DryRun = action, provider, rules == &g.DryRun
				out = append(out, f)
			}
		}
	}
	return out
}

func (r *Rules) explain(req *Request) []Finding {
	var out []Finding
	for _, policy := range r.Policies {
		if !slices.ContainsFunc(r.List, func(rule *Rule) bool { return rule.Namespace+"/"+rule.Policy == policy }) {
			out = append(out, Finding{Policy: policy, Why: "the policy has no rules"})
		}
	}
	for _, rule := range r.List {
		why := rule.why(req)
		out = append(out, Finding{Rule: rule, Policy: rule.Namespace + "/" + rule.Policy, Matches: why == "", Why: why})
	}
	return out
}

// why says why the rule does not match; empty if it does.
func (r *Rule) why(req *Request) string {
	f := r.form(req)
	switch {
	case f == nil:
		return r.Never
	case !anyClause(f.From, req):
		return whyNone("from", f.From, req)
	case !anyClause(f.To, req):
		return whyNone("to", f.To, req)
	default:
		if m := f.When.failing(req); m != nil {
			return m.why(req)
		}
		return ""
	}
}

func whyNone(name string, list []Clause, r *Request) string {
	if len(list) == 1 {
		return list[0].failing(r).why(r)
	}
	var parts []string
	for i, c := range list {
		if i == maxReasons {
			parts = append(parts, fmt.Sprintf("and %d more", len(list)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("%s[%d]: %s", name, i, c.failing(r).why(r)))
	}
	return "none of " + name + " matches: " + strings.Join(parts, "; ")
}

// maxReasons bounds the reasons, and the values of one.
const maxReasons = 4

// why says why the match fails.
func (m *Match) why(r *Request) string {
	var values []string
	for _, v := range m.Values {
		if s := quote(v.Text); !slices.Contains(values, s) {
			values = append(values, s)
		}
	}
	if n := len(values); n > maxReasons {
		values = append(values[:maxReasons:maxReasons], fmt.Sprintf("%d more", n-maxReasons))
	}
	verb := " is not "
	if m.Not {
		verb = " is "
	}
	return m.Attribute + ": " + m.actual(r) + verb + strings.Join(values, " or ")
}

// actual shows what the request has.
func (m *Match) actual(r *Request) string {
	switch m.Field {
	case SourceIP:
		return r.SourceIP.String()
	case RemoteIP:
		return r.RemoteIP.String()
	case DestinationIP:
		return r.DestinationIP.String()
	case Port:
		return strconv.FormatUint(uint64(r.Port), 10)
	case SNI:
		return quote(r.SNI)
	case RequestPrincipal:
		if r.Claims == nil {
			return "the request, without a token,"
		}
		return quote(fmt.Sprintf("%v/%v", r.Claims["iss"], r.Claims["sub"]))
	case Claim:
		if r.Claims == nil {
			return "the request, without a token,"
		}
		return show(claim(r.Claims, m.Key), "the token, without the claim,")
	case Metadata:
		return show(r.Metadata[m.Key[0]][m.Key[1]], "the request, without it,")
	case Principal:
		if r.Principal == "" {
			return "the caller, without a certificate,"
		}
	}
	s, ok := r.text(m)
	if !ok {
		return "the request, without it,"
	}
	return quote(s)
}

func show(v any, missing string) string {
	if v == nil {
		return missing
	}
	return quote(fmt.Sprint(v))
}
