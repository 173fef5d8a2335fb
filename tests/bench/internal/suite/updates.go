package suite

import (
	"context"
	"fmt"
	"time"

	"fairlead.dev/tests/bench/internal/floor"
	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/proxy"
	"fairlead.dev/tests/bench/internal/wire"
)

// The first mesh of the benchmark: 1,000 services, 100 rules of each kind, sidecars of 100 Deployments.
func ordinary(sidecars int) mesh.Spec {
	return mesh.Spec{Services: 1000, Rules: 100, Sidecars: sidecars, Classes: 100}
}

// repetitions of an event in the short and the long form.
func (l *lab) repetitions() int {
	if l.Full {
		return 40
	}
	return 10
}

// updates measures the first mesh with so many sidecars, from cold start to reconnects.
func (l *lab) updates(ctx context.Context, t *table, sidecars int) error {
	spec := ordinary(sidecars)
	// What istiod needs was measured with 200 sidecars.
	peer := func(s string) string {
		if sidecars == 200 {
			return s
		}
		return ""
	}
	w, cold, err := l.coldStart(ctx, t, spec, peer)
	if w != nil {
		defer w.close()
	}
	if err != nil {
		return err
	}
	if err := w.openFloor(ctx, floor.Files{}, true); err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		run  func() error
	}{
		{partUnrelated, func() error { return w.unrelated(ctx, t, peer) }},
		{partPushed, func() error { return w.pushed(ctx, t, peer) }},
		{partReconnect, func() error {
			w.closeFloor()
			return w.reconnects(ctx, t, cold, peer)
		}},
	} {
		if !l.wantsPart(w.group, part.name) {
			continue
		}
		if err := part.run(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// id of a line is the group's name with the row's.
func (w *world) id(row string) string { return w.group + "/" + row }

// of names a row with the size of its mesh.
func (w *world) of(row string) string { return fmt.Sprintf("%s, %d sidecars", row, w.spec.Sidecars) }

// unrelated measures what nobody needs to know.
func (w *world) unrelated(ctx context.Context, t *table, peer func(string) string) error {
	// Giving back the cold start's memory is a collection of the whole heap, which is none of these rows' doing.
	if err := rest(ctx); err != nil {
		return err
	}
	for _, row := range []struct {
		id, what string
		do       func(int) mesh.Change
	}{
		{"label", "unrelated: label on a Pod of no service", w.spec.Label},
		{"pod-label", "unrelated: label on a Pod behind a service", w.spec.PodLabel},
		{"unknown", "unrelated: object of a kind no proxy is told of", w.spec.Unknown},
		{"resync", "unrelated: 200 resources again, hashes equal", w.spec.Resync},
	} {
		got, _, err := w.change(ctx, row.id, 2*w.repetitions(), row.do, nil)
		if err != nil {
			return err
		}
		t.bytesLine(w.id(row.id)+"/bytes", w.of(row.what)+": bytes", float64(got.Bytes), 0, "")
		t.fixedLine(w.id(row.id)+"/cpu", w.of(row.what)+": CPU", got.CPU, 0, 200*time.Microsecond, peer("2 ms"))
	}
	return nil
}

// pushed measures what proxies must be told.
func (w *world) pushed(ctx context.Context, t *table, peer func(string) string) error {
	n := w.repetitions()

	got, base, err := w.change(ctx, "endpoints", n, w.spec.Endpoints, nil)
	if err != nil {
		return err
	}
	what := w.of("endpoints that all watch")
	t.cpuLine(w.id("endpoints"), what, got, base, 1.5, peer("41 ms"))
	if base != nil {
		t.fixedLine(w.id("endpoints/p99"), what+": p99 change → received", got.P99(), base.P99(), 10*time.Millisecond+2*base.P99(), peer("142 ms"))
	}
	t.bytesLine(w.id("endpoints/bytes"), what+": bytes per proxy", got.PerProxy(), -1, peer("1.3 KB"))

	if err := rest(ctx); err != nil {
		return err
	}
	if got, base, err = w.change(ctx, "endpoints-few", n, w.spec.FewEndpoints, nil); err != nil {
		return err
	}
	what = w.of("endpoints that 1 % watch")
	l := line{id: w.id("endpoints-few/cpu"), what: what + ": CPU", figure: ms(got.CPU), goal: "≤ 0.2 ms + 1.5 × floor"}
	if base != nil {
		l.floor, l.ratio = ms(base.CPU), times(float64(got.CPU), float64(base.CPU))
		l.verdict = judge(float64(got.CPU), float64(200*time.Microsecond)+1.5*float64(base.CPU), false)
	}
	t.add(l)
	reached := line{id: w.id("endpoints-few/reached"), what: what + ": proxies reached", figure: fmt.Sprint(got.Reached), goal: fmt.Sprintf("%d", w.spec.Sidecars/100)}
	reached.verdict = judge(float64(got.Reached), float64(w.spec.Sidecars/100), true)
	t.add(reached)

	if got, base, err = w.change(ctx, "virtualservice", n, w.spec.Rule, nil); err != nil {
		return err
	}
	what = w.of("one VirtualService")
	t.cpuLine(w.id("virtualservice"), what, got, base, 2, peer("1.2 s"))
	t.bytesLine(w.id("virtualservice/bytes"), what+": bytes per proxy", got.PerProxy(), 2<<10, peer("556 KB"))
	var floorP99 time.Duration
	if base != nil {
		floorP99 = base.P99()
	}
	goal := 30 * time.Millisecond
	if w.spec.Sidecars > 200 {
		goal = 0 // the goal is about 200; the floor stands beside it
	}
	t.fixedLine(w.id("virtualservice/p99"), what+": p99 change → received", got.P99(), floorP99, goal, peer("1.25 s"))
	return w.added(ctx, t, peer)
}

// added measures a new service.
func (w *world) added(ctx context.Context, t *table, peer func(string) string) error {
	got, base, err := w.change(ctx, "service", max(5, w.repetitions()/2), w.spec.Add, w.spec.Remove)
	if err != nil {
		return err
	}
	w.addCPU, w.addFloor = got.CPU, 0
	what := fmt.Sprintf("one Service added to %d, %d sidecars", w.spec.Services, w.spec.Sidecars)
	if base != nil {
		w.addFloor = base.CPU
	}
	t.cpuLine(w.id("service"), what, got, base, 0, peer("1.3 s"))
	t.bytesLine(w.id("service/bytes"), what+": bytes per proxy", got.PerProxy(), 5<<10, peer("560 KB"))
	t.fixedLine(w.id("service/p99"), what+": p99 change → received", got.P99(), p99Of(base), 0, "")
	return nil
}

func p99Of(s *sample) time.Duration {
	if s == nil {
		return 0
	}
	return s.P99()
}

// start is what a cold start took.
type start struct {
	cpu   time.Duration
	took  time.Duration
	bytes int64
	types map[string]int64
}

// connectAll brings a fleet to its configuration and measures the server.
func (w *world) connectAll(ctx context.Context, s *server, to proxy.Target) (*start, error) {
	var begin time.Time
	var used time.Duration
	w.fleet.Reset()
	if err := w.fleet.Connect(ctx, to, proxy.Cold, func() { begin, used = time.Now(), s.CPU() }); err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeout(ctx, quietMost)
	defer cancel()
	at, err := w.fleet.Configured(limit)
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, s.LogTail())
	}
	if err := quiet(ctx, s.Process, w.fleet); err != nil {
		return nil, err
	}
	c := w.fleet.Count()
	return &start{cpu: s.CPU() - used, took: at.Sub(begin), bytes: c.Bytes, types: c.ByType}, nil
}

// coldStart measures it twice: once to record what is sent, which is the floor's, and once for the time.
func (l *lab) coldStart(ctx context.Context, t *table, spec mesh.Spec, peer func(string) string) (*world, *start, error) {
	w, err := l.world(ctx, fmt.Sprintf("mesh-%d", spec.Sidecars), spec)
	if err != nil {
		return w, nil, err
	}
	w.fleet.Record(true)
	if _, err := w.connectAll(ctx, w.server, proxy.Target{Address: w.server.plaintext}); err != nil {
		return w, nil, err
	}
	script := w.fleet.Record(false)
	w.fleet.Close()
	w.server.Stop()

	if err := w.openFloor(ctx, floor.Files{}, false); err != nil {
		return w, nil, err
	}
	if err := w.floor.Load(script, true); err != nil {
		return w, nil, err
	}
	base, err := w.coldFloor(ctx, nil)
	if err != nil {
		return w, nil, err
	}

	if w.server, err = l.serve(ctx, w.watcher.Address); err != nil {
		return w, nil, err
	}
	var done <-chan error
	if l.Profile {
		done = l.profile(ctx, w.server, "cold-"+fmt.Sprint(spec.Sidecars))
		time.Sleep(100 * time.Millisecond) // until it has begun
	}
	got, err := w.connectAll(ctx, w.server, proxy.Target{Address: w.server.plaintext})
	if err != nil {
		return w, nil, err
	}
	if done != nil {
		if err := <-done; err != nil {
			return w, nil, err
		}
	}
	w.coldLines(t, got, base, "cold start", peer)
	return w, got, nil
}

// coldFloor lets a fleet start on the floor, which holds the script already.
func (w *world) coldFloor(ctx context.Context, to *proxy.Target) (*start, error) {
	fleet := w.fleet
	defer func() { w.fleet = fleet }()
	target := proxy.Target{Address: w.floor.Address}
	if to != nil {
		target.TLS = to.TLS
	}
	w.fleet = proxy.NewFleet(w.spec.Proxies())
	base, err := w.connectAll(ctx, &server{Process: w.floor.Process}, target)
	w.fleet.Close()
	w.closeFloor()
	return base, err
}

func (w *world) coldLines(t *table, got, base *start, row string, peer func(string) string) {
	what := w.of(row)
	n := float64(w.spec.Sidecars)
	const id = "cold"
	t.add(line{
		id: w.id(id + "/cpu"), what: what + ": CPU", figure: ms(got.cpu), floor: ms(base.cpu), ratio: times(float64(got.cpu), float64(base.cpu)),
		goal: "≤ 1.5 × floor", peer: peer("11 s"), verdict: judge(float64(got.cpu), 1.5*float64(base.cpu), false),
	})
	goal := time.Duration(0)
	if w.spec.Sidecars == 200 {
		goal = time.Second
	}
	t.fixedLine(w.id(id+"/all"), what+": last one configured", got.took, base.took, goal, peer("13–18 s"))
	t.bytesLine(w.id(id+"/bytes"), fmt.Sprintf("%s: bytes per proxy (CDS %s, EDS %s, LDS %s, RDS %s, VHDS %s)", what, size(float64(got.types[wire.Cluster])/n),
		size(float64(got.types[wire.Endpoint])/n), size(float64(got.types[wire.Listener])/n), size(float64(got.types[wire.Route])/n),
		size(float64(got.types[wire.VirtualHost])/n)), float64(got.bytes)/n, -1, peer("2.6 MB"))
}
