package suite

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fairlead.dev/tests/bench/internal/proxy"
	"fairlead.dev/tests/bench/internal/wire"
)

// mixed measures a busy mesh: 100 changes a second of all sorts, each a revision, with 1,000 sidecars.
func (l *lab) mixed(ctx context.Context, t *table) error {
	const perSecond = 100
	lasts := 10 * time.Second
	if l.Full {
		lasts = time.Minute
	}
	w, err := l.world(ctx, "mixed", ordinary(1000))
	if w != nil {
		defer w.close()
	}
	if err != nil {
		return err
	}
	if _, err := w.connectAll(ctx, w.server, proxy.Target{Address: w.server.plaintext}); err != nil {
		return err
	}
	var done <-chan error
	if l.Profile {
		done = l.profile(ctx, w.server, "mixed")
	}
	w.fleet.Follow()
	w.fleet.Reset()
	used, begin := w.server.CPU(), time.Now()
	var middle int64
	changes, expected := int(lasts.Seconds()*perSecond), 0
	ticker := time.NewTicker(time.Second / perSecond)
	defer ticker.Stop()
	for n := range changes {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		c := w.spec.Mixed(n)
		if c.Host != "" {
			// Before the revision is out: an answer may be faster than the next line.
			w.fleet.Pending(c.Host, time.Now())
			expected++
		}
		w.watcher.Commit(c)
		if n == changes/3 {
			m, err := w.server.Memory()
			if err != nil {
				return err
			}
			middle = m.Resident
		}
	}
	took := time.Since(begin)
	end, err := w.server.Memory()
	if err != nil {
		return err
	}
	if err := quiet(ctx, w.server.Process, w.fleet); err != nil {
		return err
	}
	if done != nil {
		if err := <-done; err != nil {
			return err
		}
	}
	waits, seen := w.fleet.Waits()
	got := w.fleet.Count()
	what := fmt.Sprintf("%d mixed changes/s for %.0f s, 1000 sidecars", perSecond, lasts.Seconds())
	t.fixedLine("mixed/p99", what+": p99 change → ACK", percentile(slices.Concat(slices.Collect(maps.Values(waits))...), 0.99), 0, 250*time.Millisecond, "")
	for _, of := range []struct{ name, url string }{{"CDS", wire.Cluster}, {"EDS", wire.Endpoint}, {"RDS", wire.Route}, {"VHDS", wire.VirtualHost}} {
		if d := waits[of.url]; len(d) > 0 {
			t.add(line{
				id: "mixed/" + strings.ToLower(of.name), what: what + ": change → ACK, " + of.name + " alone",
				figure: fmt.Sprintf("median %s, p99 %s", ms(percentile(d, 0.5)), ms(percentile(d, 0.99))),
			})
		}
	}
	share := 100 * float64(seen) / float64(expected*w.spec.Sidecars)
	all := line{id: "mixed/seen", what: what + ": changes × sidecars acknowledged", figure: fmt.Sprintf("%.1f %%", share), goal: "100 %"}
	all.verdict = judge(100-share, 0.5, true)
	t.add(all)
	t.add(line{
		id: "mixed/cpu", what: what + ": share of a core", figure: fmt.Sprintf("%.0f %%", 100*(w.server.CPU()-used).Seconds()/took.Seconds()),
	})
	t.bytesLine("mixed/bytes", what+": bytes per proxy and second", float64(got.Bytes)/float64(w.spec.Sidecars)/took.Seconds(), -1, "")
	t.add(line{
		id: "mixed/memory", what: what + ": memory after a third and at the end", figure: size(float64(middle)) + ", " + size(float64(end.Resident)),
		goal: "flat: ≤ 1.1 ×", ratio: times(float64(end.Resident), float64(middle)), verdict: judge(float64(end.Resident), 1.1*float64(middle), true),
	})
	return nil
}
