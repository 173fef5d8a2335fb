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
func (w *world) reconnects(ctx context.Context, t *table, cold *start, peer func(string) string) error {
	base, err := w.reconnectFloor(ctx)
	if err != nil {
		return err
	}
	if err := w.reconnect(ctx, t, w.server, base, cold, "same", "reconnect to the same server", 0.05, peer); err != nil {
		return err
	}
	other, err := w.serve(ctx, w.watcher.Address)
	if err != nil {
		return err
	}
	defer other.Stop()
	// One proxy of each class is there already; it is none of those that come.
	few := w.spec
	few.Sidecars = w.spec.Classes
	first := &world{lab: w.lab, spec: few, fleet: proxy.NewFleet(firstOfEach(w.spec))}
	defer first.fleet.Close()
	if _, err := first.connectAll(ctx, other, proxy.Target{Address: other.plaintext}); err != nil {
		return err
	}
	if err := w.reconnect(ctx, t, other, base, cold, "other", "reconnect to another server", 0.05, peer); err != nil {
		return err
	}
	fresh, err := w.serve(ctx, w.watcher.Address)
	if err != nil {
		return err
	}
	defer fresh.Stop()
	return w.reconnect(ctx, t, fresh, base, cold, "fresh", "reconnect to a server just started", 0, func(string) string { return "" })
}

// firstOfEach lists one proxy of each class, and one of the namespace Few.
func firstOfEach(spec mesh.Spec) []mesh.Proxy {
	all := spec.Proxies()
	return append(all[:spec.Classes:spec.Classes], all[len(all)-1])
}

// reconnectFloor is what it takes to receive the same requests, and to answer nothing.
func (w *world) reconnectFloor(ctx context.Context) (time.Duration, error) {
	if err := w.openFloor(ctx, floor.Files{}, false); err != nil {
		return 0, err
	}
	defer w.closeFloor()
	w.fleet.Close()
	var used time.Duration
	if err := w.fleet.Connect(ctx, proxy.Target{Address: w.floor.Address}, proxy.Retained, func() { used = w.floor.CPU() }); err != nil {
		return 0, err
	}
	if err := quiet(ctx, w.floor.Process, w.fleet); err != nil {
		return 0, err
	}
	cpu := w.floor.CPU() - used
	w.fleet.Close()
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
func (w *world) reconnect(ctx context.Context, t *table, to *server, base time.Duration, cold *start, id, row string, share float64, peer func(string) string) error {
	w.fleet.Close()
	if err := quiet(ctx, to.Process, nil); err != nil {
		return err
	}
	w.fleet.Reset()
	w.fleet.Record(true)
	var used time.Duration
	var done <-chan error
	begin := func() {
		if w.Profile {
			done = w.profile(ctx, to, fmt.Sprintf("reconnect-%s-%d", id, w.spec.Sidecars))
			time.Sleep(100 * time.Millisecond) // until it has begun
		}
		used = to.CPU()
	}
	if err := w.fleet.Connect(ctx, proxy.Target{Address: to.plaintext}, proxy.Retained, begin); err != nil {
		return err
	}
	if err := quiet(ctx, to.Process, w.fleet); err != nil {
		return err
	}
	cpu, got, script := to.CPU()-used, w.fleet.Count(), w.fleet.Record(false)
	if done != nil {
		if err := <-done; err != nil {
			return err
		}
	}
	what := w.of(row)
	t.bytesLine(w.id("reconnect-"+id+"/bytes"), what+": bytes of all"+contentOf(got.ByType, script), float64(got.Bytes), float64(cold.bytes)/100, peer("all again"))
	l := line{id: w.id("reconnect-" + id + "/cpu"), what: what + ": CPU", figure: ms(cpu), floor: ms(base), ratio: times(float64(cpu), float64(base)), peer: peer("11 s")}
	if share > 0 {
		l.goal = fmt.Sprintf("≤ %.0f %% of the cold start's = %s", share*100, ms(time.Duration(share*float64(cold.cpu))))
		l.verdict = judge(float64(cpu), share*float64(cold.cpu), false)
	}
	t.add(l)
	return nil
}
