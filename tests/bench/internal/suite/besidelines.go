package suite

import (
	"fmt"
	"time"

	"fairlead.dev/tests/bench/internal/kube"
)

// Goals beside istiod, as parts of its figures, and for itself.
const (
	besideMemory = 0.6
	besideCPU    = 0.1
	besidePolicy = 0.05
	stormGoal    = 100 * time.Millisecond
)

// lines of Fairlead's figures beside istiod's.
func (b *beside) lines(t *table, ours, theirs *figures) {
	add := func(id, what, figure, peer string, got, beside, part float64, unit string) {
		l := line{id: "kube/" + id, what: what, figure: figure, peer: peer, ratio: times(got, beside)}
		if part > 0 {
			l.goal = fmt.Sprintf("≤ %g × istiod's", part)
			l.verdict = judge(got, part*beside, unit == "exact")
		}
		t.add(l)
	}
	duration := func(id, what string, got, beside time.Duration, part float64) {
		add(id, what, ms(got), ms(beside), float64(got), float64(beside), part, "")
	}
	bytes := func(id, what string, got, beside int64, part float64) {
		add(id, what, size(float64(got)), size(float64(beside)), float64(got), float64(beside), part, "exact")
	}
	start := fmt.Sprintf("start with %s Services, %s endpoints, %s mesh objects", thousands(b.spec.Services()),
		thousands(b.spec.Services()*kube.PerService),
		thousands(b.spec.Namespaces*kube.Rules))
	duration("ready", start+": first revision", ours.ready, theirs.ready, 0)
	duration("ready-cpu", start+": CPU", ours.readyCPU, theirs.readyCPU, 0)
	bytes("memory", start+": memory after it", ours.synced.Resident, theirs.synced.Resident, besideMemory)
	bytes("peak", start+": peak memory", ours.synced.Peak, theirs.synced.Peak, 0)
	proxies := fmt.Sprintf("%d proxies connect", b.spec.Proxies)
	duration("configured", proxies+": last one configured", ours.configured, theirs.configured, 0)
	duration("configured-cpu", proxies+": CPU", ours.configuredCPU, theirs.configuredCPU, 0)
	bytes("configured-bytes", proxies+": bytes per proxy", ours.bytes/int64(b.spec.Proxies), theirs.bytes/int64(b.spec.Proxies), 0)
	bytes("connected", proxies+": memory after it", ours.connected.Resident, theirs.connected.Resident, 0)
	for _, k := range []struct{ id, kind, what string }{
		{"endpoint", kindEndpoint, "one endpoint changes"}, {"virtualservice", kindRoute, "one VirtualService changes"},
		{"service", kindService, "one Service is added"},
	} {
		o, i := ours.changes[k.kind], theirs.changes[k.kind]
		duration(k.id+"/cpu", k.what+": CPU", o.CPU, i.CPU, besideCPU)
		duration(k.id+"/p99", k.what+": p99 change → ACK", o.P99(), i.P99(), 1)
		bytes(k.id+"/bytes", k.what+": bytes per proxy", o.Bytes/int64(b.spec.Proxies), i.Bytes/int64(b.spec.Proxies), 0)
	}
	o, i := ours.changes[kindPolicy], theirs.changes[kindPolicy]
	what := fmt.Sprintf("one AuthorizationPolicy of %s changes", thousands(b.spec.Namespaces*kube.Policies))
	duration("policy/cpu", what+": CPU", o.CPU, i.CPU, besidePolicy)
	duration("policy/p99", what+": p99 change → ACK", o.P99(), i.P99(), 1)
	bytes("policy/bytes", what+": bytes per proxy reached", int64(o.PerProxy()), int64(i.PerProxy()), besidePolicy)
	reached := line{id: "kube/policy/reached", what: what + ": proxies reached", figure: fmt.Sprint(o.Reached), peer: fmt.Sprint(i.Reached),
		goal: fmt.Sprint(b.selected()), verdict: judge(float64(o.Reached), float64(b.selected()), true)}
	t.add(reached)
	b.stormLines(t, ours.storm, theirs.storm)
}

func (b *beside) stormLines(t *table, o, i *stormResult) {
	what := fmt.Sprintf("%s endpoints change a second for %.0f s", thousands(stormPerSecond), b.lasts.Seconds())
	offered := line{id: "kube/storm/rate", what: what + ": were changed", figure: fmt.Sprintf("%.0f/s", o.perSecond),
		peer: fmt.Sprintf("%.0f/s", i.perSecond)}
	offered.goal, offered.verdict = fmt.Sprintf("≥ %d/s", stormPerSecond*98/100), judge(stormPerSecond*0.98, o.perSecond, true)
	t.add(offered)
	ours, theirs := percentile(o.delays, 0.99), percentile(i.delays, 0.99)
	t.add(line{
		id: "kube/storm/p99", what: what + ": p99 change → ACK", figure: ms(ours), peer: ms(theirs), ratio: times(float64(ours), float64(theirs)),
		goal: "≤ " + ms(stormGoal), verdict: judge(float64(ours), float64(stormGoal), false),
	})
	t.add(line{
		id: "kube/storm/median", what: what + ": median", figure: ms(percentile(o.delays, 0.5)), peer: ms(percentile(i.delays, 0.5)),
		ratio: times(float64(percentile(o.delays, 0.5)), float64(percentile(i.delays, 0.5))),
	})
	lost := func(r *stormResult) int { return r.unacknowledged + r.different }
	t.add(line{
		id: "kube/storm/lost", what: what + ": changes × proxies not acknowledged, endpoints unlike the API's at the end",
		figure: fmt.Sprint(lost(o)),
		peer:   fmt.Sprint(lost(i)), goal: "0", verdict: judge(float64(lost(o)), 0, true),
	})
	t.add(line{
		id: "kube/storm/cpu", what: what + ": share of a core", figure: fmt.Sprintf("%.0f %%", 100*o.cpu),
		peer: fmt.Sprintf("%.0f %%", 100*i.cpu), ratio: times(o.cpu, i.cpu),
	})
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
