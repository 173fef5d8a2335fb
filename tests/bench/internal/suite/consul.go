package suite

import (
	"context"
	"fmt"
	"time"

	"fairlead.dev/tests/bench/internal/registry"
)

// What is asked of config-watcher with a large registry in Consul.
const (
	consulServed    = time.Minute
	consulMemory    = 600 << 20
	consulIdleCPU   = 0.03 // of a processor
	consulIdleRate  = 50   // requests a second
	consulRate      = 1000 // changes of health a second
	consulSeen      = 500 * time.Millisecond
	consulBusyCPU   = 0.6 // of a processor
	consulFileSlows = 1.2 // how much slower a change of a file may be meanwhile
)

// registered measures config-watcher with a large registry in Consul.
func (l *lab) registered(ctx context.Context, t *table) error {
	c := registry.Config{Plane: l.services, Dir: l.dir, Services: 2000, Rest: 20 * time.Second, Busy: 30 * time.Second, Rate: consulRate,
		Files: 20}
	if l.Full {
		// At rest each reading is renewed once in five minutes.
		c.Services, c.Rest, c.Busy, c.Files = 10_000, 5*time.Minute, 5*time.Minute, 100
	}
	if l.Profile {
		c.Profile = l.fetch
	}
	f, err := registry.Measure(ctx, c)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%s services with %s instances in Consul", thousands(c.Services), thousands(c.Services*registry.Instances))
	t.fixedLine("consul/served", what+": a subscriber has them after", f.Served, 0, consulServed, "")
	t.fixedLine("consul/served-cpu", what+": CPU until then", f.ServedCPU, 0, 0, "")
	t.bytesLine("consul/peak", what+": peak memory", float64(f.RestMemory.Peak), consulMemory, "")
	t.bytesLine("consul/rest/memory", "at rest: memory", float64(f.RestMemory.Resident), -1, "")
	t.shareLine("consul/rest/cpu", "at rest: part of a processor", f.RestCPU, consulIdleCPU)
	t.add(line{id: "consul/rest/requests", what: "at rest: requests to Consul", figure: fmt.Sprintf("%.0f/s", f.RestRequests),
		goal: fmt.Sprintf("≤ %d/s", consulIdleRate), verdict: judge(f.RestRequests, consulIdleRate, true)})
	busy := fmt.Sprintf("%.0f changes/s of health", f.Rate)
	t.fixedLine("consul/changes/p99", busy+": p99 answer of Consul → subscriber", percentile(f.Seen, 0.99), 0, consulSeen, "")
	t.fixedLine("consul/changes/p50", busy+": p50", percentile(f.Seen, 0.5), 0, 0, "")
	t.shareLine("consul/changes/cpu", busy+": part of a processor", f.BusyCPU, consulBusyCPU)
	t.bytesLine("consul/changes/peak", busy+": peak memory", float64(f.BusyMemory.Peak), consulMemory, "")
	with, without := percentile(f.Beside, 0.99), percentile(f.Quiet, 0.99)
	t.add(line{id: "consul/changes/file", what: busy + ": p99 change of a file → subscriber",
		figure: fmt.Sprintf("%s, without the changes %s", ms(with), ms(without)), ratio: times(float64(with), float64(without)),
		goal: fmt.Sprintf("≤ %g × without", consulFileSlows), verdict: judge(float64(with), consulFileSlows*float64(without), false)})
	return nil
}

// shareLine compares a part of a processor with a goal.
func (t *table) shareLine(id, what string, got, goal float64) {
	t.add(line{id: id, what: what, figure: fmt.Sprintf("%.1f %%", got*100), goal: fmt.Sprintf("≤ %g %%", goal*100),
		verdict: judge(got, goal, false)})
}
