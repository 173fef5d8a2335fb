package authzview

import (
	"fmt"
	"io"
	"strings"

	"fairlead.dev/services/installer/internal/table"
)

// Print prints the answer for people.
func (a *Answer) Print(out io.Writer) error {
	for i, r := range a.Results {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := r.print(out); err != nil {
			return err
		}
	}
	return printNotes(out, a.Notes)
}

func (r *Result) print(out io.Writer) error {
	outcome := r.Outcome
	if outcome == "asks" {
		outcome = "asks " + strings.Join(r.Providers, " and ")
	}
	fmt.Fprintf(out, "%s: %s\n", outcome, r.Reason)
	fmt.Fprintf(out, "  at       %s\n", strings.Join(r.Workloads, ", "))
	fmt.Fprintf(out, "  caller   %s\n", orNone(r.Seen.Principal))
	if r.Seen.TCP {
		fmt.Fprintln(out, "  request  a TCP connection"+port(r.Seen.Port))
	} else {
		fmt.Fprintf(out, "  request  %s %s%s\n", r.Seen.Method, r.Seen.Path, port(r.Seen.Port))
	}
	if len(r.Findings) > 0 {
		tab := &table.Table{Header: []string{"ACTION", "AUTHORIZATIONPOLICY", "RULE", "MATCHES", "WHY NOT"}}
		for _, f := range r.Findings {
			matches := "no"
			if f.Matches {
				matches = "yes"
			}
			tab.Add(f.action(), f.Policy, f.rule(), matches, f.Why)
		}
		fmt.Fprintf(out, "\n  %s\n", strings.Join(tab.Lines(), "\n  "))
	}
	return printNotes(out, r.Notes)
}

func orNone(principal string) string {
	if principal == "" {
		return "without a certificate"
	}
	return principal
}

func port(n uint32) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", port %d", n)
}

func (f Finding) action() string { return actionText(f.Action, f.Provider, f.DryRun) }

func actionText(action, provider string, dryRun bool) string {
	if provider != "" {
		action += " " + provider
	}
	if dryRun {
		action += " (dry run)"
	}
	return action
}

func (f Finding) rule() string {
	if f.Rule == nil {
		return ""
	}
	return fmt.Sprint(*f.Rule)
}

func printNotes(out io.Writer, notes []string) error {
	if len(notes) > 0 {
		fmt.Fprintln(out)
	}
	for _, n := range notes {
		if _, err := fmt.Fprintln(out, "note: "+n); err != nil {
			return err
		}
	}
	return nil
}
