package suite

import (
	"fmt"
	"time"

	"fairlead.dev/tests/bench/internal/edge"
)

// Goals of a Gateway with many routes, for itself and as parts of istiod's figures.
const (
	routeServed    = 30 * time.Millisecond
	routesCounted  = time.Second
	besideRouteCPU = 0.1
	besideRouteRSS = 0.5
)

// gatewayLines are Fairlead's figures beside istiod's.
func gatewayLines(t *table, lasts time.Duration, o, i *edge.Figures) {
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
	start := fmt.Sprintf("start with %s routes", thousands(edge.Routes))
	within("ready", start+": ready", o.Ready, i.Ready, 0)
	within("configured", start+": Envoy answers for them", o.Configured, i.Configured, 0)
	memory("memory", start+": memory after it", o.Memory.Resident, i.Memory.Resident)
	for _, k := range []struct {
		id, what     string
		ours, theirs *edge.Change
	}{
		{"added", fmt.Sprintf("a route is added to %s", thousands(edge.Routes)), o.Added, i.Added},
		{"removed", "one is removed", o.Removed, i.Removed},
	} {
		within(k.id+"/p99", k.what+": p99 change → request answered", percentile(k.ours.Delays, 0.99), percentile(k.theirs.Delays, 0.99),
			routeServed)
		within(k.id+"/p50", k.what+": median", percentile(k.ours.Delays, 0.5), percentile(k.theirs.Delays, 0.5), 0)
		part(k.id+"/cpu", k.what+": CPU", k.ours.CPU, k.theirs.CPU)
	}
	within("counted", fmt.Sprintf("%s routes are created at once: last one → `attachedRoutes` is right", thousands(edge.Burst)), o.Counted,
		i.Counted, routesCounted)
	churn := fmt.Sprintf("%d changes/s of %s routes for %.0f s", edge.ChurnPerSecond, thousands(edge.Churned), lasts.Seconds())
	failed := func(f *edge.Figures) string { return fmt.Sprintf("%d of %d", f.Failed, f.Sent) }
	t.add(line{id: "gateway/churn/failed", what: churn + ": requests that failed", figure: failed(o), peer: failed(i), goal: "0",
		verdict: judge(float64(o.Failed), 0, true)})
	part("churn/cpu", churn+": CPU of a change", o.PerChurn, i.PerChurn)
	within("churn/envoy", churn+": CPU of Envoy for a change and ten requests", o.EnvoyPerChurn, i.EnvoyPerChurn, 0)
	row("churn/bytes", churn+": bytes of a change", size(float64(o.BytesPerChurn)), size(float64(i.BytesPerChurn)), float64(o.BytesPerChurn),
		float64(i.BytesPerChurn), "", none)
	memory("churn/memory", churn+": memory after it", o.Churned.Resident, i.Churned.Resident)
}

// aloneLine is what Envoy takes without a control plane.
func aloneLine(t *table, what string, c *edge.Change) {
	t.add(line{id: "gateway/alone/" + what, what: "Envoy alone, told by a bare server: a route is " + what + ": p99, median, CPU",
		figure: ms(percentile(c.Delays, 0.99)) + ", " + ms(percentile(c.Delays, 0.5)) + ", " + ms(c.CPU)})
}
