package issuing

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Goals of docs/performance.md.
const (
	floorFactor  = 1.6
	rsaFactor    = 1.3
	rateGoal     = 3000
	p99Goal      = 25 * time.Millisecond
	istiodFactor = 3
	stepFactor   = 2
)

// round is what one server took beside the floor, in one turn.
type round struct {
	sample Sample
	floor  time.Duration
}

// row is one server and the way in which its clients prove who they are.
type row struct {
	what   string
	rounds []round
}

func (r *row) ratio() float64 {
	return median(r.rounds, func(r round) float64 { return float64(r.sample.CPU) / float64(r.floor) })
}

func (r *row) rate() float64 { return median(r.rounds, func(r round) float64 { return r.sample.Rate }) }

func (r *row) of(f func(s Sample) time.Duration) time.Duration {
	return time.Duration(median(r.rounds, func(r round) float64 { return float64(f(r.sample)) }))
}

func (r *row) cpu() time.Duration { return r.of(func(s Sample) time.Duration { return s.CPU }) }
func (r *row) p99() time.Duration { return r.of(func(s Sample) time.Duration { return s.P99 }) }
func (r *row) p50() time.Duration { return r.of(func(s Sample) time.Duration { return s.P50 }) }
func (r *row) floor() time.Duration {
	return time.Duration(median(r.rounds, func(r round) float64 { return float64(r.floor) }))
}

func median(rounds []round, f func(round) float64) float64 {
	all := make([]float64, 0, len(rounds))
	for _, r := range rounds {
		all = append(all, f(r))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// Goal is one line of what must hold.
type Goal struct {
	What, Want, Got string
	Holds           bool
}

func atMost(what string, got, most float64) Goal {
	return Goal{what, fmt.Sprintf("≤ %g", most), fmt.Sprintf("%.2f", got), got <= most}
}

func atLeast(what string, got, least float64) Goal {
	return Goal{what, fmt.Sprintf("≥ %g", least), fmt.Sprintf("%.2f", got), got >= least}
}

// goals judges the rows. Those of one key have the same floor, so that ratios of ratios compare servers.
func goals(rows map[string]*row) []Goal {
	var out []Goal
	for _, name := range []string{caCertificate, caToken} {
		r := rows[name]
		out = append(out, atMost(r.what+": CPU beside the floor", r.ratio(), floorFactor),
			atLeast(r.what+": certificates a second", r.rate(), rateGoal),
			Goal{r.what + ": p99 at 64 in flight", "≤ " + p99Goal.String(), r.p99().Round(10 * time.Microsecond).String(), r.p99() <= p99Goal})
	}
	out = append(out, atMost(rows[caRSA].what+": CPU beside its floor", rows[caRSA].ratio(), rsaFactor))
	for _, other := range []struct {
		name, ours string
		factor     float64
	}{{istiodToken, caToken, istiodFactor}, {istiodCertificate, caCertificate, istiodFactor}, {stepToken, caToken, stepFactor},
		{spireMint, caToken, stepFactor}} {
		if r := rows[other.name]; r != nil {
			out = append(out, atLeast(fmt.Sprintf("%s: its CPU beside that of the %s", r.what, rows[other.ours].what),
				r.ratio()/rows[other.ours].ratio(), other.factor))
		}
	}
	return out
}

// Print writes the rows and the goals as tables of Markdown, and says whether all goals hold.
func Print(w io.Writer, rows []*row, goals []Goal) bool {
	var b strings.Builder
	b.WriteString("| server | CPU of each | floor | ratio (median) | each second | p50 | p99 |\n|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %.2f | %.0f | %s | %s |\n", r.what, r.cpu().Round(time.Microsecond), r.floor().Round(time.Microsecond),
			r.ratio(), r.rate(), r.p50().Round(10*time.Microsecond), r.p99().Round(10*time.Microsecond))
	}
	b.WriteString("\n| must hold | goal | figure | |\n|---|---|---|---|\n")
	all := true
	for _, g := range goals {
		verdict := "yes"
		if !g.Holds {
			verdict, all = "**no**", false
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", g.What, g.Want, g.Got, verdict)
	}
	fmt.Fprint(w, b.String())
	return all
}
