package authzview

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/installer/internal/authzdiff"
	"fairlead.dev/services/installer/internal/table"
)

// Coverage says of each rule whether it is of any use.
type Coverage struct {
	Rules []RuleCoverage `json:"rules"`
	Notes []string       `json:"notes,omitempty"`
}

// RuleCoverage is what is known of one rule. Rule is nil for a policy without rules.
type RuleCoverage struct {
	Policy   string `json:"policy"`
	Rule     *int   `json:"rule,omitempty"`
	Action   string `json:"action"`
	Provider string `json:"provider,omitempty"`
	DryRun   bool   `json:"dryRun,omitempty"`
	// Workloads is the number of those to which the policy applies.
	Workloads int `json:"workloads"`
	// Never says why the rule cannot match, and Covered by which others every request that it matches is decided the
	// same way; empty if it can, and if none are known.
	Never   string `json:"never,omitempty"`
	Covered string `json:"covered,omitempty"`
	// Matched is how many HTTP requests the rule has matched, as proxies count; nil if none is known and some proxies
	// do not count, which are Uncounted of the Workloads. TCP says that the rule may match TCP connections, which no
	// proxy counts by rule.
	Matched   *uint64 `json:"matched,omitempty"`
	Uncounted int     `json:"uncounted,omitempty"`
	TCP       bool    `json:"tcp,omitempty"`
}

// Useless reports whether the rule could be left out.
func (r RuleCoverage) Useless() bool {
	return r.Never != "" || r.Covered != "" || r.Workloads == 0 || r.Matched != nil && *r.Matched == 0
}

// Coverage says which rules cannot match, and which are covered by others wherever they apply. counts are what proxies
// have counted; nil if that is not known.
func (m *Mesh) Coverage(counts *Counts) *Coverage {
	out := &Coverage{Rules: []RuleCoverage{}, Notes: slices.Clone(m.Notes)}
	for _, p := range m.Policies {
		if p.Problem != "" {
			out.Notes = append(out.Notes, fmt.Sprintf("AuthorizationPolicy %s is refused, and so what it selects is closed: %s", policyName(p),
				p.Problem))
		}
	}
	applies, uncounted := map[string]int{}, map[string]int{}
	covered, nevers := map[string][]string{}, map[string][]string{}
	for _, class := range m.classes(lists.Filter(m.Workloads, func(w *Workload) bool { return w.Proxy != NoProxy })) {
		for _, p := range class.Policies {
			applies[policyName(p)] += len(class.Workloads)
			if counts != nil {
				uncounted[policyName(p)] += len(lists.Filter(class.Workloads, func(w *Workload) bool { return !counts.RulesOf[w.ID()] }))
			}
		}
		set := m.seenBy(class.Policies, class.tokens)
		for _, g := range groups(set) {
			for i, r := range g.rules.List {
				nevers[r.Name] = append(nevers[r.Name], never(r))
				if _, known := covered[r.Name]; known && slices.Contains(covered[r.Name], "") {
					continue // not covered elsewhere
				}
				covered[r.Name] = append(covered[r.Name], m.coveredBy(set, g, i))
			}
		}
	}
	for _, p := range m.Policies {
		for _, g := range groups(m.Compile([]Policy{p})) {
			if len(g.rules.Policies) == 0 {
				continue
			}
			rule := RuleCoverage{Policy: policyName(p), Action: g.action, Provider: g.provider, DryRun: g.dryRun, Workloads: applies[policyName(p)]}
			if len(g.rules.List) == 0 {
				out.Rules = append(out.Rules, rule)
			}
			for _, r := range g.rules.List {
				rule.Rule, rule.TCP = &r.Index, r.TCP != nil
				rule.Never, rule.Covered, rule.Matched = never(r), "", nil
				if by := nevers[r.Name]; rule.Never == "" && len(by) > 0 && !slices.Contains(by, "") {
					rule.Never = by[0]
				}
				if by := covered[r.Name]; rule.Never == "" && len(by) > 0 && !slices.Contains(by, "") {
					slices.Sort(by)
					rule.Covered = strings.Join(slices.Compact(by), "; elsewhere ")
				}
				if counts != nil {
					rule.Uncounted = uncounted[policyName(p)]
					if n := counts.Rules[r.Name]; n > 0 || rule.Uncounted == 0 {
						rule.Matched = &n
					}
				}
				out.Rules = append(out.Rules, rule)
			}
		}
	}
	return out
}

// alone is a set of DENY rules, by which requests are told that these match.
func alone(rules ...*authz.Rule) *authz.Set {
	set := &authz.Set{}
	set.Deny.Enforced.List = rules
	return set
}

// same reports whether two sets decide all requests alike.
func same(a, b *authz.Set, answers func(tcp bool) map[string]authz.Answer) bool {
	for _, tcp := range []bool{false, true} {
		known := answers(tcp)
		r := authzdiff.Compare(a, b, authzdiff.Options{TCP: tcp, Answers: [2]map[string]authz.Answer{known, known}})
		if len(r.Changes)+len(r.Bounded) > 0 {
			return false
		}
	}
	return true
}

func noAnswers(bool) map[string]authz.Answer { return nil }

// examples returns an HTTP request and a connection that a rule matches, as far as it matches any.
func examples(r *authz.Rule) (out []authz.Request, complete bool) {
	complete = true
	for _, tcp := range []bool{false, true} {
		result := authzdiff.Compare(alone(), alone(r), authzdiff.Options{TCP: tcp})
		complete = complete && len(result.Bounded) == 0
		for _, c := range result.Changes {
			out = append(out, c.Request)
		}
	}
	return out, complete
}

// never says why a rule matches no request; empty if it may.
func never(r *authz.Rule) string {
	if r.HTTP == nil && r.TCP == nil {
		return r.Never
	}
	if found, complete := examples(r); complete && len(found) == 0 {
		return "what it asks for excludes each other"
	}
	return ""
}

// maxTogether bounds the rules of a workload among which those are looked for that several others cover together.
const maxTogether = 200

// coveredBy says which rules decide what a rule of a group would decide in the same way; empty if it matters.
func (m *Mesh) coveredBy(set *authz.Set, g group, i int) string {
	r := g.rules.List[i]
	found, complete := examples(r)
	if !complete || len(found) == 0 {
		return ""
	}
	decides := !g.dryRun && g.action != authz.Audit
	// Policies stay: an ALLOW policy without rules denies.
	without := set.Map(func(o *authz.Rule) *authz.Rule {
		if o == r {
			return nil
		}
		return o
	})
	if decides && slices.ContainsFunc(found, func(req authz.Request) bool {
		req.Answers = m.answers(set, req.TCP)
		return authzdiff.Differ(set.Decide(req), without.Decide(req))
	}) {
		return ""
	}
	covers := func(other *authz.Rule) bool {
		return lists.All(found, other.Matches) && same(alone(other), alone(other, r), noAnswers)
	}
	for j, other := range g.rules.List {
		// Of two equal rules the later one is covered.
		if j != i && covers(other) && (j < i || !same(alone(r), alone(r, other), noAnswers)) {
			return ruleText(other)
		}
	}
	if !decides {
		return ""
	}
	if g.action != authz.Deny {
		for _, other := range set.Deny.Enforced.List {
			if covers(other) {
				return ruleText(other) + ", which denies"
			}
		}
	}
	rules := 0
	for _, g := range groups(set) {
		rules += len(g.rules.List)
	}
	if rules <= maxTogether && same(set, without, func(tcp bool) map[string]authz.Answer { return m.answers(set, tcp) }) {
		return "several rules together"
	}
	return ""
}

func ruleText(r *authz.Rule) string {
	return fmt.Sprintf("rule %d of %s/%s", r.Index, r.Namespace, r.Policy)
}

// Print prints the rules, or with useless those that could be left out.
func (c *Coverage) Print(out io.Writer, useless bool) error {
	tab := &table.Table{Header: []string{"ACTION", "AUTHORIZATIONPOLICY", "RULE", "WORKLOADS", "MATCHED", "FINDING"}}
	for _, r := range c.Rules {
		if useless && !r.Useless() {
			continue
		}
		f := Finding{Action: r.Action, Policy: r.Policy, Rule: r.Rule, Provider: r.Provider, DryRun: r.DryRun}
		matched := ""
		if r.Matched != nil {
			matched = fmt.Sprint(*r.Matched)
		}
		tab.Add(f.action(), r.Policy, f.rule(), fmt.Sprint(r.Workloads), matched, r.finding())
	}
	if len(tab.Rows) == 0 {
		fmt.Fprintln(out, "no rules, or none that could be left out")
	} else if err := tab.Write(out); err != nil {
		return err
	}
	return printNotes(out, c.Notes)
}

func (r RuleCoverage) finding() string {
	switch {
	case r.Workloads == 0:
		return "the policy applies to no workload with a proxy"
	case r.Never != "":
		return "cannot match: " + r.Never
	case r.Covered != "":
		return "covered by " + r.Covered
	case r.Rule == nil && r.Action == authz.Allow:
		return "denies what no other ALLOW rule allows"
	case r.Rule == nil:
		return "has no rules and no effect"
	case r.Matched == nil && r.Uncounted > 0:
		return fmt.Sprintf("whether it has matched is not known: %d of %d workloads do not count", r.Uncounted, r.Workloads)
	case r.Matched != nil && *r.Matched == 0 && r.TCP:
		return "has matched no HTTP request since the proxies started; TCP connections are not counted"
	case r.Matched != nil && *r.Matched == 0:
		return "has matched no request since the proxies started"
	}
	return ""
}
