package suite

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fairlead.dev/tests/bench/internal/wire"
)

// patience is how long the last of the mixed changes may take, also on a machine that cannot keep up:
// whether each arrives is one goal, and when is another.
const patience = time.Minute

// mixed measures a busy mesh: 100 changes a second of all sorts, each a revision, with so many sidecars.
func (l *lab) mixed(ctx context.Context, t *table, id string, sidecars int) error {
	const perSecond = 100
	lasts := 10 * time.Second
	if l.Full {
		lasts = time.Minute
	}
	f, err := l.connected(ctx, id, ordinary(sidecars))
	if f != nil {
		defer f.close()
	}
	if err != nil {
		return err
	}
	var done <-chan error
	if l.Profile {
		done = l.profile(ctx, f.server, id)
	}
	f.fleet.Follow()
	f.fleet.Reset()
	used, begin := f.server.CPU(), time.Now()
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
		c := f.spec.Mixed(n)
		if c.Host != "" {
			// Before the revision is out: an answer may be faster than the next line.
			f.fleet.Pending(c.Host, time.Now())
			expected++
		}
		f.watcher.Commit(c)
		if n == changes/3 {
			m, err := f.server.Memory()
			if err != nil {
				return err
			}
			middle = m.Resident
		}
	}
	took := time.Since(begin)
	end, err := f.server.Memory()
	if err != nil {
		return err
	}
	// A process that is quiet may be one that was not given the processor: what was changed last has to arrive, or else
	// be found missing.
	for late := time.Now(); time.Since(late) < patience; {
		if err := quiet(ctx, f.server.Process, f.fleet); err != nil {
			return err
		}
		if _, seen := f.fleet.Waits(); seen == expected*sidecars {
			break
		}
	}
	if done != nil {
		if err := <-done; err != nil {
			return err
		}
	}
	waits, seen := f.fleet.Waits()
	got := f.fleet.Count()
	what := fmt.Sprintf("%d mixed changes/s for %.0f s, %d sidecars", perSecond, lasts.Seconds(), sidecars)
	t.fixedLine(id+"/p99", what+": p99 change → ACK", percentile(slices.Concat(slices.Collect(maps.Values(waits))...), 0.99), 0,
		250*time.Millisecond, "")
	for _, of := range []struct{ name, url string }{{"CDS", wire.Cluster}, {"EDS", wire.Endpoint}, {"RDS", wire.Route},
		{"VHDS", wire.VirtualHost}} {
		if d := waits[of.url]; len(d) > 0 {
			t.add(line{
				id: id + "/" + strings.ToLower(of.name), what: what + ": change → ACK, " + of.name + " alone",
				figure: fmt.Sprintf("median %s, p99 %s", ms(percentile(d, 0.5)), ms(percentile(d, 0.99))),
			})
		}
	}
	share := 100 * float64(seen) / float64(expected*sidecars)
	all := line{id: id + "/seen", what: what + ": changes × sidecars acknowledged", figure: fmt.Sprintf("%.1f %%", share), goal: "100 %"}
	all.verdict = judge(100-share, 0.5, true)
	t.add(all)
	t.add(line{
		id: id + "/cpu", what: what + ": share of a core", figure: fmt.Sprintf("%.0f %%", 100*(f.server.CPU()-used).Seconds()/took.Seconds()),
	})
	t.bytesLine(id+"/bytes", what+": bytes per proxy and second", float64(got.Bytes)/float64(f.spec.Sidecars)/took.Seconds(), -1, "")
	t.add(line{
		id: id + "/memory", what: what + ": memory after a third and at the end",
		figure: size(float64(middle)) + ", " + size(float64(end.Resident)),
		goal:   "flat: ≤ 1.1 ×", ratio: times(float64(end.Resident), float64(middle)),
		verdict: judge(float64(end.Resident), 1.1*float64(middle), true),
	})
	return nil
}
