package suite

import (
	"context"
	"fmt"
	"time"

	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/wire"
)

// Rates of the group endpoints, in changes per second.
const (
	calmRate  = 40
	stormRate = 100
	floodRate = 1000
)

// endpoints measures how long a change of endpoints takes to the ACKs of 200 sidecars: at rest, while configuration
// changes a hundred times a second, and while endpoints change a thousand times a second.
func (l *lab) endpoints(ctx context.Context, t *table) error {
	const id = "endpoints"
	f, err := l.connected(ctx, id, ordinary(200))
	if f != nil {
		defer f.close()
	}
	if err != nil {
		return err
	}
	lasts := 10 * time.Second
	if l.Full {
		lasts = time.Minute
	}
	var rest time.Duration
	turn := 0
	for _, row := range []struct {
		id, what                 string
		endpoints, configuration int // per second
		goal                     func() time.Duration
	}{
		{"rest", "at rest", calmRate, 0, func() time.Duration { return 50 * time.Millisecond }},
		{"storm", fmt.Sprintf("beside %d changes/s of configuration", stormRate), calmRate, stormRate, func() time.Duration { return 2 * rest }},
		{"flood", fmt.Sprintf("of %d/s", floodRate), floodRate, 0, func() time.Duration { return 100 * time.Millisecond }},
	} {
		var done <-chan error
		if l.Profile {
			done = l.profile(ctx, f.server, id+"-"+row.id)
		}
		used, begin := f.server.CPU(), time.Now()
		expected, err := f.endpointChanges(ctx, lasts, row.endpoints, row.configuration, &turn)
		if err != nil {
			return fmt.Errorf("%s: %w", row.id, err)
		}
		share := (f.server.CPU() - used).Seconds() / time.Since(begin).Seconds()
		if done != nil {
			if err := <-done; err != nil {
				return err
			}
		}
		waits, seen := f.fleet.Waits()
		p99 := percentile(waits[wire.Endpoint], 0.99)
		if row.id == "rest" {
			rest = p99
		}
		what := f.of("change of endpoints " + row.what)
		t.fixedLine(f.id(row.id)+"/p99", what+": p99 change → ACK", p99, 0, row.goal(), "")
		t.add(line{
			id: f.id(row.id) + "/median", what: what + ": median change → ACK; share of a core",
			figure: fmt.Sprintf("%s; %.0f %%", ms(percentile(waits[wire.Endpoint], 0.5)), 100*share),
		})
		if d := waits[wire.VirtualHost]; len(d) > 0 {
			t.add(line{
				id: f.id(row.id) + "/configuration", what: f.of("VirtualServices of the same time") + ": change → ACK",
				figure: fmt.Sprintf("median %s, p99 %s", ms(percentile(d, 0.5)), ms(percentile(d, 0.99))),
			})
		}
		all := line{id: f.id(row.id) + "/seen", what: what + ": changes × sidecars acknowledged",
			figure: fmt.Sprintf("%.1f %%", 100*float64(seen)/float64(expected)), goal: "100 %"}
		all.verdict = judge(100-100*float64(seen)/float64(expected), 0.5, true)
		t.add(all)
	}
	return nil
}

// endpointChanges makes changes of endpoints and of configuration at these rates, and waits until all are acknowledged.
// It returns how many pairs of a change and a sidecar there are. turn counts the changes of all calls.
func (f *fixture) endpointChanges(ctx context.Context, lasts time.Duration, endpoints, configuration int, turn *int) (expected int,
	err error) {
	f.fleet.Follow()
	f.fleet.Reset()
	commit := func(c mesh.Change, follow bool) {
		if follow {
			f.fleet.Pending(c.Host, time.Now()) // before the revision is out: an answer may be faster than the next line
			expected += f.spec.Sidecars
		}
		f.watcher.Commit(c)
	}
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	made := [2]int{}
	for begin := time.Now(); time.Since(begin) < lasts; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		due := func(rate int) int { return int(time.Since(begin).Seconds() * float64(rate)) }
		for ; made[0] < due(endpoints); made[0]++ {
			commit(f.spec.OtherEndpoints(*turn), true)
			*turn++
		}
		for n := made[1]; n < due(configuration); n++ {
			// Endpoints of a changed DestinationRule's clusters are sent again: they would count as a change of
			// endpoints.
			commit(f.spec.OtherRule(n), n%2 == 0)
			made[1]++
		}
	}
	for late := time.Now(); time.Since(late) < patience; {
		if err := quiet(ctx, f.server.Process, f.fleet); err != nil {
			return 0, err
		}
		if _, seen := f.fleet.Waits(); seen == expected {
			break
		}
	}
	return expected, nil
}
