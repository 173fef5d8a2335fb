package suite

import (
	"fmt"
	"time"
)

// Goals of a Gateway with many routes, for itself and as parts of istiod's figures.
const (
	routeServed    = 30 * time.Millisecond
	routesCounted  = time.Second
	besideRouteCPU = 0.1
	besideRouteRSS = 0.5
)

// lines of Fairlead's figures beside istiod's.
func (b *edgeBench) lines(t *table, o, i *edgeFigures) {
	row := func(id, what, figure, peer string, got, beside float64, goal string, v verdict) {
		t.add(line{id: "gateway/" + id, what: what, figure: figure, peer: peer, ratio: times(got, beside), goal: goal, verdict: v})
	}
	within := func(id, what string, got, beside, goal time.Duration) {
		text, v := "", none
		if goal > 0 {
			text, v = "≤ "+ms(goal), judge(float64(got), float64(goal), false)
		}
		row(id, what, ms(got), ms(beside), float64(got), float64(beside), text, v)
	}
	part := func(id, what string, got, beside time.Duration) {
		row(id, what, ms(got), ms(beside), float64(got), float64(beside), fmt.Sprintf("≤ %g × istiod's", besideRouteCPU),
			judge(float64(got), besideRouteCPU*float64(beside), false))
	}
	memory := func(id, what string, got, beside int64) {
		row(id, what, size(float64(got)), size(float64(beside)), float64(got), float64(beside), fmt.Sprintf("≤ %g × istiod's", besideRouteRSS),
			judge(float64(got), besideRouteRSS*float64(beside), true))
	}
	start := fmt.Sprintf("start with %s routes", thousands(edgeRoutes))
	within("ready", start+": ready", o.ready, i.ready, 0)
	within("configured", start+": Envoy answers for them", o.configured, i.configured, 0)
	memory("memory", start+": memory after it", o.memory.Resident, i.memory.Resident)
	for _, k := range []struct {
		id, what     string
		ours, theirs *sample
	}{
		{"added", fmt.Sprintf("a route is added to %s", thousands(edgeRoutes)), o.added, i.added},
		{"removed", "one is removed", o.removed, i.removed},
	} {
		within(k.id+"/p99", k.what+": p99 change → request answered", k.ours.P99(), k.theirs.P99(), routeServed)
		within(k.id+"/p50", k.what+": median", percentile(k.ours.Delays, 0.5), percentile(k.theirs.Delays, 0.5), 0)
		part(k.id+"/cpu", k.what+": CPU", k.ours.CPU, k.theirs.CPU)
	}
	within("counted", fmt.Sprintf("%s routes are created at once: last one → `attachedRoutes` is right", thousands(edgeBurst)), o.counted,
		i.counted, routesCounted)
	churn := fmt.Sprintf("%d changes/s of %s routes for %.0f s", churnPerSecond, thousands(edgeChurned), b.lasts.Seconds())
	failed := func(f *edgeFigures) string { return fmt.Sprintf("%d of %d", f.failed, f.sent) }
	t.add(line{id: "gateway/churn/failed", what: churn + ": requests that failed", figure: failed(o), peer: failed(i), goal: "0",
		verdict: judge(float64(o.failed), 0, true)})
	part("churn/cpu", churn+": CPU of a change", o.perChurn, i.perChurn)
	within("churn/envoy", churn+": CPU of Envoy for a change and ten requests", o.envoyPerChurn, i.envoyPerChurn, 0)
	row("churn/bytes", churn+": bytes of a change", size(float64(o.bytesPerChurn)), size(float64(i.bytesPerChurn)), float64(o.bytesPerChurn),
		float64(i.bytesPerChurn), "", none)
	memory("churn/memory", churn+": memory after it", o.churned.Resident, i.churned.Resident)
}
