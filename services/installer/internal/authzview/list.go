package authzview

import (
	"fmt"
	"io"
	"strings"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/installer/internal/table"
)

// Listing are the policies that apply to some workloads.
type Listing struct {
	Workloads []string `json:"workloads"`
	Policies  []Listed `json:"policies"`
	Notes     []string `json:"notes,omitempty"`
}

// Listed is a policy that applies. Rules is the number of its rules.
type Listed struct {
	Action   string `json:"action"`
	Policy   string `json:"policy"`
	Rules    int    `json:"rules"`
	Provider string `json:"provider,omitempty"`
	DryRun   bool   `json:"dryRun,omitempty"`
	Problem  string `json:"problem,omitempty"`
	Location string `json:"location,omitempty"`
}

// List lists the policies that apply to a target, for each class of its workloads.
func (m *Mesh) List(to *Target) []Listing {
	var out []Listing
	for _, class := range m.classes(to.Workloads) {
		l := Listing{Workloads: lists.Map(class.Workloads, (*Workload).ID), Policies: []Listed{}}
		set := m.Compile(class.Policies)
		byName := map[string]Policy{}
		for _, p := range class.Policies {
			byName[policyName(p)] = p
		}
		for _, g := range set.ByAction() {
			for _, name := range g.Rules.Policies {
				p := byName[name]
				l.Policies = append(l.Policies, Listed{Action: g.Action, Policy: name, Rules: len(p.Spec.GetRules()), Provider: g.Provider,
					DryRun: g.DryRun, Problem: p.Problem, Location: p.Location})
			}
		}
		if class.Workloads[0].Proxy == NoProxy {
			l.Notes = append(l.Notes, "there is no connected proxy that would enforce policies")
		}
		out = append(out, l)
	}
	return out
}

// PrintListings prints listings as tables, which have the columns of istioctl's.
func PrintListings(out io.Writer, listings []Listing) error {
	for i, l := range listings {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if len(listings) > 1 {
			fmt.Fprintln(out, strings.Join(l.Workloads, ", ")+":")
		}
		if len(l.Policies) == 0 {
			fmt.Fprintf(out, "no policy applies to %s\n", strings.Join(l.Workloads, ", "))
		} else {
			tab := &table.Table{Header: []string{"ACTION", "AUTHORIZATIONPOLICY", "RULES"}}
			for _, p := range l.Policies {
				ns, name, _ := strings.Cut(p.Policy, "/")
				tab.Add(actionText(p.Action, p.Provider, p.DryRun), name+"."+ns, fmt.Sprint(p.Rules))
			}
			if err := tab.Write(out); err != nil {
				return err
			}
		}
		for _, p := range l.Policies {
			if p.Problem != "" {
				l.Notes = append(l.Notes, fmt.Sprintf("AuthorizationPolicy %s is refused, and what it selects is closed: %s", p.Policy, p.Problem))
			}
		}
		if err := printNotes(out, l.Notes); err != nil {
			return err
		}
	}
	return nil
}
