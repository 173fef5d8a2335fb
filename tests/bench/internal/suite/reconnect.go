package suite

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fairlead.dev/tests/bench/internal/floor"
	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/proxy"
	"fairlead.dev/tests/bench/internal/wire"
)

// reconnects measures all proxies coming back with the versions they hold: to the same server, to another one that
// serves proxies of their classes, and to one that has seen none.
func (f *fixture) reconnects(ctx context.Context, t *table, cold *start, peer func(string) string) error {
	base, err := f.reconnectFloor(ctx)
	if err != nil {
		return err
	}
	if err := f.reconnect(ctx, t, f.server, base, cold, "same", "reconnect to the same server", 0.05, peer); err != nil {
		return err
	}
	other, err := f.serve(ctx, f.watcher.Address)
	if err != nil {
		return err
	}
	defer other.Stop()
	// One proxy of each class is there already; it is none of those that come.
	few := f.spec
	few.Sidecars = f.spec.Classes
	first := &fixture{lab: f.lab, spec: few, fleet: proxy.NewFleet(firstOfEach(f.spec))}
	defer first.fleet.Close()
	if _, err := first.connectAll(ctx, other, proxy.Target{Address: other.plaintext}); err != nil {
		return err
	}
	if err := f.reconnect(ctx, t, other, base, cold, "other", "reconnect to another server", 0.05, peer); err != nil {
		return err
	}
	fresh, err := f.serve(ctx, f.watcher.Address)
	if err != nil {
		return err
	}
	defer fresh.Stop()
	return f.reconnect(ctx, t, fresh, base, cold, "fresh", "reconnect to a server just started", 0, func(string) string { return "" })
}

// firstOfEach lists one proxy of each class, and one of the namespace Few.
func firstOfEach(spec mesh.Spec) []mesh.Proxy {
	all := spec.Proxies()
	return append(all[:spec.Classes:spec.Classes], all[len(all)-1])
}

// reconnectFloor is what it takes to receive the same requests, and to answer nothing.
func (f *fixture) reconnectFloor(ctx context.Context) (time.Duration, error) {
	if err := f.openFloor(ctx, floor.Files{}, false); err != nil {
		return 0, err
	}
	defer f.closeFloor()
	f.fleet.Close()
	var used time.Duration
	if err := f.fleet.Connect(ctx, proxy.Target{Address: f.floor.Address}, proxy.Retained, func() { used = f.floor.CPU() }); err != nil {
		return 0, err
	}
	if err := quiet(ctx, f.floor.Process, f.fleet); err != nil {
		return 0, err
	}
	cpu := f.floor.CPU() - used
	f.fleet.Close()
	return cpu, nil
}

// contentOf tells what was sent, if anything was: how much of each type, and the first names.
func contentOf(bytes map[string]int64, scripts map[string][]*wire.Content) string {
	var out []string
	for _, url := range slices.Sorted(maps.Keys(bytes)) {
		out = append(out, url[strings.LastIndexByte(url, '.')+1:]+" "+size(float64(bytes[url])))
	}
	if len(out) == 0 {
		return ""
	}
	names := map[string]struct{}{}
	for _, contents := range scripts {
		for _, c := range contents {
			for _, h := range c.Resources {
				names["`"+h.Name+"`"] = struct{}{}
			}
			for _, name := range c.Removed {
				names["removed `"+name+"`"] = struct{}{}
			}
		}
	}
	sorted := slices.Sorted(maps.Keys(names))
	const shown = 3
	if len(sorted) > shown {
		sorted = append(sorted[:shown], fmt.Sprintf("and %d more", len(sorted)-shown))
	}
	return strings.ReplaceAll(" ("+strings.Join(out, ", ")+": "+strings.Join(sorted, ", ")+")", "|", "¦") // a cell ends at a bar
}

// reconnect measures one; share of the cold start's CPU is the goal, 0 none.
func (f *fixture) reconnect(ctx context.Context, t *table, to *server, base time.Duration, cold *start, id, row string, share float64,
	peer func(string) string) error {
	f.fleet.Close()
	if err := quiet(ctx, to.Process, nil); err != nil {
		return err
	}
	f.fleet.Reset()
	f.fleet.Record(true)
	var used time.Duration
	var done <-chan error
	begin := func() {
		if f.Profile {
			done = f.profile(ctx, to, fmt.Sprintf("reconnect-%s-%d", id, f.spec.Sidecars))
			time.Sleep(100 * time.Millisecond) // until it has begun
		}
		used = to.CPU()
	}
	if err := f.fleet.Connect(ctx, proxy.Target{Address: to.plaintext}, proxy.Retained, begin); err != nil {
		return err
	}
	if err := quiet(ctx, to.Process, f.fleet); err != nil {
		return err
	}
	cpu, got, script := to.CPU()-used, f.fleet.Count(), f.fleet.Record(false)
	if done != nil {
		if err := <-done; err != nil {
			return err
		}
	}
	what := f.of(row)
	t.bytesLine(f.id("reconnect-"+id+"/bytes"), what+": bytes of all"+contentOf(got.ByType, script), float64(got.Bytes),
		float64(cold.bytes)/100, peer("all again"))
	l := line{id: f.id("reconnect-" + id + "/cpu"), what: what + ": CPU", figure: ms(cpu), floor: ms(base),
		ratio: times(float64(cpu), float64(base)), peer: peer("11 s")}
	if share > 0 {
		l.goal = fmt.Sprintf("≤ %.0f %% of the cold start's = %s", share*100, ms(time.Duration(share*float64(cold.cpu))))
		l.verdict = judge(float64(cpu), share*float64(cold.cpu), false)
	}
	t.add(l)
	return nil
}
