package authzview

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/services/installer/internal/table"
)

// DryRuns are the policies in dry run, with the requests that they would have refused.
type DryRuns struct {
	Policies []DryRunPolicy `json:"policies"`
	Refusals []Refusals     `json:"refusals"`
	Notes    []string       `json:"notes,omitempty"`
}

// DryRunPolicy is a policy in dry run.
type DryRunPolicy struct {
	Policy    string `json:"policy"`
	Action    string `json:"action"`
	Workloads int    `json:"workloads"`
}

// DryRuns lists the policies in dry run that apply to workloads, with what was counted. An ALLOW policy in dry run
// alone refuses what no such policy allows.
func (m *Mesh) DryRuns(workloads []*Workload, c *Counts) *DryRuns {
	out := &DryRuns{Policies: []DryRunPolicy{}, Refusals: []Refusals{}, Notes: slices.Clone(m.Notes)}
	for _, p := range m.Policies {
		if !p.DryRun {
			continue
		}
		tried := DryRunPolicy{Policy: policyName(p), Action: p.Spec.GetAction().String()}
		for _, w := range workloads {
			if m.selection(w).Applies(p.Namespace, p.Spec) && w.Proxy != NoProxy {
				tried.Workloads++
			}
		}
		out.Policies = append(out.Policies, tried)
	}
	for _, r := range c.DryRun {
		r.Past = !slices.ContainsFunc(out.Policies, func(p DryRunPolicy) bool {
			return p.Action == r.Action && (r.Policy == "" || r.Policy == p.Policy)
		})
		out.Refusals = append(out.Refusals, r)
	}
	if slices.ContainsFunc(c.DryRun, func(r Refusals) bool { return r.Caller == unknown }) {
		out.Notes = append(out.Notes, "callers are unknown of what has not ended yet, beyond 1,000 pairs of rule and caller of a proxy, and in "+
			"proxies that are older than Envoy 1.39")
	}
	for _, s := range c.Silent {
		out.Notes = append(out.Notes, "not counted: "+s)
	}
	return out
}

// Print prints the counts for people.
func (d *DryRuns) Print(out io.Writer) error {
	tab := &table.Table{Header: []string{"ACTION", "AUTHORIZATIONPOLICY", "WORKLOADS"}}
	for _, p := range d.Policies {
		tab.Add(p.Action, p.Policy, fmt.Sprint(p.Workloads))
	}
	if len(tab.Rows) == 0 {
		fmt.Fprintln(out, "no AuthorizationPolicy is in dry run: annotate one with istio.io/dry-run: \"true\"")
	} else if err := tab.Write(out); err != nil {
		return err
	}
	switch {
	case len(d.Refusals) > 0:
		fmt.Fprintln(out)
	case len(d.Policies) == 0:
		return printNotes(out, d.Notes)
	default:
		fmt.Fprintln(out)
		fmt.Fprintln(out, "no request would have been refused since the proxies started, as far as they count")
		return printNotes(out, d.Notes)
	}
	tab = &table.Table{Header: []string{"WOULD REFUSE", "RULE", "CALLER", "WORKLOAD", "REQUESTS"}}
	for _, r := range d.Refusals {
		tab.Add(r.refuses(), Finding{Rule: r.Rule}.rule(), cmp.Or(r.Caller, "without a certificate"), r.Workload,
			fmt.Sprint(r.Requests))
	}
	if err := tab.Write(out); err != nil {
		return err
	}
	return printNotes(out, d.Notes)
}

// refuses names what would have refused.
func (r Refusals) refuses() string {
	text := cmp.Or(r.Policy, "a DENY rule in dry run")
	if r.Action == authz.Allow {
		text = "no ALLOW rule in dry run"
	}
	if r.Past {
		text += " (no longer)"
	}
	return text
}
