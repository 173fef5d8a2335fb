package expect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fairlead.dev/tests/scenarios/internal/caller"
)

// shown is how much of a body is told.
const shown = 1500

// outcome is a result in a word or two.
func outcome(r *caller.Result) string {
	switch {
	case r.Err != nil:
		return strings.Join(r.Classes, "+") + ": " + r.Err.Error()
	case r.GRPC != nil:
		return fmt.Sprintf("gRPC %s, status %d", *r.GRPC, r.Status)
	case r.Addresses != nil:
		return strings.Join(r.Addresses, " ")
	}
	return fmt.Sprintf("status %d", r.Status)
}

// summary counts what happened, and tells one request and its answer in full.
func (c *check) summary() string {
	var out strings.Builder
	outcomes, from := map[string]int{}, map[string]int{}
	var longest time.Duration
	for _, r := range c.results {
		text := outcome(r)
		if r.Err != nil {
			text = strings.Join(r.Classes, "+")
		}
		outcomes[text]++
		if r.Err == nil {
			who := c.answerer(r)
			if who == "" {
				who = "(no application)"
			}
			from[who]++
		}
		longest = max(longest, r.Duration)
	}
	fmt.Fprintf(&out, "  %d calls, the longest %s: %s\n", len(c.results), longest.Round(time.Millisecond), counts(outcomes, len(c.results)))
	if len(from) > 0 {
		fmt.Fprintf(&out, "  answers from: %s\n", counts(from, len(c.results)))
	}
	r := c.example
	if r == nil {
		r = c.results[0]
	}
	fmt.Fprintf(&out, "  one call, to %s, in %s:\n%s", r.Remote, r.Duration.Round(time.Millisecond), indent("> ", r.Sent))
	switch {
	case r.Err != nil:
		out.WriteString(indent("! ", r.Err.Error()))
	case r.Header != nil:
		fmt.Fprintf(&out, "    < HTTP/%s %d\n", r.Version, r.Status)
		for _, name := range slices.Sorted(maps.Keys(r.Header)) {
			out.WriteString(indent("< ", name+": "+strings.Join(r.Header[name], ", ")))
		}
	}
	body := strings.TrimRight(string(r.Body), " \n")
	if len(body) > shown {
		body = body[:shown] + "…"
	}
	if body != "" {
		out.WriteString(indent("< ", body))
	}
	for _, s := range c.journal[r.ID] {
		fmt.Fprintf(&out, "    it reached %s, port %d, from %s: %s %s host %q, answered %d\n", s.Workload, s.LocalPort, s.SourceIP, s.Method,
			s.Path, s.Host, s.Status)
	}
	return strings.TrimRight(out.String(), "\n")
}

func counts(of map[string]int, total int) string {
	var parts []string
	for _, name := range slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		if of[a] != of[b] {
			return of[b] - of[a]
		}
		return strings.Compare(a, b)
	}) {
		parts = append(parts, fmt.Sprintf("%s × %d (%.1f %%)", name, of[name], 100*float64(of[name])/float64(total)))
	}
	return strings.Join(parts, ", ")
}

func indent(mark, text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString("    " + mark + strings.TrimRight(line, "\r\n") + "\n")
	}
	return out.String()
}
