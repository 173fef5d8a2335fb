package authzview

import (
	"context"
	"fmt"
	"io"
	"slices"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/installer/internal/authzcover"
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
	// Closed is true for an object that is refused, and denies what it selects; its rules are not looked at.
	Closed bool `json:"closed,omitempty"`
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

// Coverage says which rules cannot match, and which are covered by others wherever they apply: those are such that they
// can be left out together. counts are what proxies have counted; nil if that is not known. The error is that of ctx.
func (m *Mesh) Coverage(ctx context.Context, counts *Counts) (*Coverage, error) {
	out := &Coverage{Rules: []RuleCoverage{}, Notes: slices.Clone(m.Notes)}
	for _, p := range m.Policies {
		if p.Problem != "" {
			out.Notes = append(out.Notes, closedText(p))
		}
	}
	classes := m.classes(lists.Filter(m.Workloads, func(w *Workload) bool { return w.Proxy != NoProxy }))
	applies, uncounted := map[string]int{}, map[string]int{}
	for _, class := range classes {
		for _, p := range class.Policies {
			applies[policyName(p)] += len(class.Workloads)
			if counts != nil {
				uncounted[policyName(p)] += len(lists.Filter(class.Workloads, func(w *Workload) bool { return !counts.RulesOf[w.ID()] }))
			}
		}
	}
	covers, err := m.covers(ctx, classes)
	if err != nil {
		return nil, err
	}
	out.Notes = append(out.Notes, covers.Notes()...)
	covered, err := covers.Find(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range m.Policies {
		for _, g := range m.Compile([]Policy{p}).ByAction() {
			if len(g.Rules.Policies) == 0 {
				continue
			}
			rule := RuleCoverage{Policy: policyName(p), Action: g.Action, Provider: g.Provider, DryRun: g.DryRun, Closed: p.Problem != "",
				Workloads: applies[policyName(p)]}
			if len(g.Rules.List) == 0 || rule.Closed {
				out.Rules = append(out.Rules, rule)
				continue
			}
			for _, r := range slices.SortedFunc(slices.Values(g.Rules.List), authzcover.Order) {
				rule.Rule, rule.TCP, rule.Matched = &r.Index, r.TCP != nil, nil
				rule.Never, rule.Covered = covers.Never(r), covered[r.Name]
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
	return out, nil
}

// covers reads the rules at all workloads. Refused objects do not count: what covers others until they are mended is no
// reason to leave these out.
func (m *Mesh) covers(ctx context.Context, classes []*Class) (*authzcover.Covers, error) {
	var places []authzcover.Workloads
	for _, class := range classes {
		set := m.sentBy(lists.Filter(class.Policies, func(p Policy) bool { return p.Problem == "" }), class.tokens)
		places = append(places, authzcover.Workloads{
			Name: few(lists.Map(class.Workloads, (*Workload).ID)), Rules: set,
			Answers: func(tcp bool) map[string]authz.Answer { return m.answers(set, tcp) },
		})
	}
	return authzcover.Read(ctx, places)
}

// closedText says what a refused object does.
func closedText(p Policy) string {
	return fmt.Sprintf("AuthorizationPolicy %s is refused, and so what it selects is closed: %s", policyName(p), p.Problem)
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
		fmt.Fprintln(out, "no rule is known that could be left out")
	} else if err := tab.Write(out); err != nil {
		return err
	}
	return printNotes(out, c.Notes)
}

func (r RuleCoverage) finding() string {
	switch {
	case r.Workloads == 0:
		return "the policy applies to no workload with a proxy"
	case r.Closed:
		return "is refused, and so what it selects is closed"
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
