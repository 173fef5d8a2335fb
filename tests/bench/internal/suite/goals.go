package suite

import (
	"fmt"
	"time"
)

// claims are the lines whose goals are reached: a run in which one of them is missed fails.
var claims = []string{
	"mesh-200/label/bytes", "mesh-200/pod-label/bytes", "mesh-200/unknown/bytes", "mesh-200/resync/bytes",
	"mesh-200/endpoints-few/reached", "mesh-200/virtualservice/bytes", "mesh-200/service/bytes",
	"mesh-200/reconnect-same/bytes", "mesh-200/reconnect-other/bytes", "mesh-200/reconnect-fresh/bytes",
	"mesh-1000/label/bytes", "mesh-1000/pod-label/bytes", "mesh-1000/unknown/bytes", "mesh-1000/resync/bytes",
	"mesh-1000/endpoints-few/reached", "mesh-1000/virtualservice/bytes", "mesh-1000/service/bytes",
	"mesh-1000/reconnect-same/bytes", "mesh-1000/reconnect-other/bytes", "mesh-1000/reconnect-fresh/bytes",
	"large-1000/service/bytes", "large-10000/service/bytes", "large/growth", "mixed/seen", "mixed-250/seen", "memory/both", "memory/each",
	"policies/cold/cpu", "policies/change/reached", "policies/change/bytes", "policies/memory/each",
	"files/ready", "files/cpu", "files/peak",
	"kube/endpoint/p99", "kube/virtualservice/p99", "kube/service/p99", "kube/storm/lost",
}

// cpuLine compares a time of a processor with a multiple of the floor's.
func (t *table) cpuLine(id, what string, got, base *sample, factor float64, peer string) {
	low, high := got.Spread()
	l := line{id: id + "/cpu", what: what + ": CPU", figure: fmt.Sprintf("%s (%s to %s)", ms(got.CPU), ms(low), ms(high)), peer: peer}
	if base != nil {
		l.floor, l.ratio = ms(base.CPU), times(float64(got.CPU), float64(base.CPU))
		if factor > 0 {
			l.goal = fmt.Sprintf("≤ %g × floor", factor)
			l.verdict = judge(float64(got.CPU), factor*float64(base.CPU), false)
		}
	}
	t.add(l)
}

// floorLine compares a time with a multiple of the floor's, so that a slow or busy machine does not decide. fixed is
// the goal on the machine that it was written for.
func (t *table) floorLine(id, what string, got, base time.Duration, factor float64, fixed time.Duration) {
	t.add(line{
		id: id, what: what, figure: ms(got), floor: ms(base), ratio: times(float64(got), float64(base)),
		goal:    fmt.Sprintf("≤ %g × floor (%s)", factor, ms(fixed)),
		verdict: judge(float64(got), factor*float64(base), false),
	})
}

// besideLine compares a time with a multiple of that of what it stands beside.
func (t *table) besideLine(id, what string, got, beside time.Duration, factor float64) {
	t.add(line{
		id: id, what: what, figure: ms(got), floor: ms(beside), ratio: times(float64(got), float64(beside)),
		goal: fmt.Sprintf("≤ %g × without", factor), verdict: judge(float64(got), factor*float64(beside), false),
	})
}

// fixedLine compares a time with a goal that is fixed.
func (t *table) fixedLine(id, what string, got, base, goal time.Duration, peer string) {
	l := line{id: id, what: what, figure: ms(got), peer: peer}
	if base > 0 {
		l.floor, l.ratio = ms(base), times(float64(got), float64(base))
	}
	if goal > 0 {
		l.goal, l.verdict = "≤ "+ms(goal), judge(float64(got), float64(goal), false)
	}
	t.add(l)
}

// speedLine compares how many times as fast something is as what it stands beside with the factor that is the goal.
func (t *table) speedLine(id, what string, got, beside time.Duration, factor float64) {
	t.add(line{
		id: id, what: what, figure: ms(got), floor: ms(beside), ratio: times(float64(beside), float64(got)), goal: fmt.Sprintf("≥ %g ×", factor),
		verdict: judge(factor*float64(got), float64(beside), false),
	})
}

// bytesLine compares bytes with a goal; 0 bytes is a goal, a negative one is none.
func (t *table) bytesLine(id, what string, got, goal float64, peer string) {
	l := line{id: id, what: what, figure: size(got), peer: peer}
	if goal >= 0 {
		l.goal, l.verdict = "≤ "+size(goal), judge(got, goal, true)
		if goal == 0 {
			l.goal = "0 B"
		}
	}
	t.add(l)
}
