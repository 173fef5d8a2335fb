package suite

import (
	"context"
	"fmt"
	"time"

	"fairlead.dev/tests/bench/internal/floor"
	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/proxy"
	"fairlead.dev/tests/bench/internal/services"
	"fairlead.dev/tests/bench/internal/wire"
	"fairlead.dev/tests/internal/wait"
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
	f, cold, err := l.coldStart(ctx, t, spec, peer)
	if f != nil {
		defer f.close()
	}
	if err != nil {
		return err
	}
	if err := f.openFloor(ctx, floor.Files{}, true); err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		run  func() error
	}{
		{partUnrelated, func() error { return f.unrelated(ctx, t, peer) }},
		{partPushed, func() error { return f.pushed(ctx, t, peer) }},
		{partReconnect, func() error {
			f.closeFloor()
			return f.reconnects(ctx, t, cold, peer)
		}},
	} {
		if !l.wantsPart(f.group, part.name) {
			continue
		}
		if err := part.run(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// id of a line is the group's name with the row's.
func (f *fixture) id(row string) string { return f.group + "/" + row }

// of names a row with the size of its mesh.
func (f *fixture) of(row string) string { return fmt.Sprintf("%s, %d sidecars", row, f.spec.Sidecars) }

// unrelated measures what nobody needs to know.
func (f *fixture) unrelated(ctx context.Context, t *table, peer func(string) string) error {
	// Giving back the cold start's memory is a collection of the whole heap, which is none of these rows' doing.
	if err := wait.Pause(ctx, memorySettles); err != nil {
		return err
	}
	for _, row := range []struct {
		id, what string
		do       func(int) mesh.Change
	}{
		{"label", "unrelated: label on a Pod of no service", f.spec.Label},
		{"pod-label", "unrelated: label on a Pod behind a service", f.spec.PodLabel},
		{"unknown", "unrelated: object of a kind no proxy is told of", f.spec.Unknown},
		{"resync", "unrelated: 200 resources again, hashes equal", f.spec.Resync},
	} {
		got, _, err := f.change(ctx, row.id, 2*f.repetitions(), row.do, nil)
		if err != nil {
			return err
		}
		t.bytesLine(f.id(row.id)+"/bytes", f.of(row.what)+": bytes", float64(got.Bytes), 0, "")
		t.fixedLine(f.id(row.id)+"/cpu", f.of(row.what)+": CPU", got.CPU, 0, 200*time.Microsecond, peer("2 ms"))
	}
	return nil
}

// pushed measures what proxies must be told.
func (f *fixture) pushed(ctx context.Context, t *table, peer func(string) string) error {
	n := f.repetitions()

	got, base, err := f.change(ctx, "endpoints", n, f.spec.Endpoints, nil)
	if err != nil {
		return err
	}
	what := f.of("endpoints that all watch")
	t.cpuLine(f.id("endpoints"), what, got, base, 1.5, peer("41 ms"))
	if base != nil {
		t.fixedLine(f.id("endpoints/p99"), what+": p99 change → received", got.P99(), base.P99(), 10*time.Millisecond+2*base.P99(),
			peer("142 ms"))
	}
	t.bytesLine(f.id("endpoints/bytes"), what+": bytes per proxy", got.PerProxy(), -1, peer("1.3 KB"))

	if err := wait.Pause(ctx, memorySettles); err != nil {
		return err
	}
	if got, base, err = f.change(ctx, "endpoints-few", n, f.spec.FewEndpoints, nil); err != nil {
		return err
	}
	what = f.of("endpoints that 1 % watch")
	l := line{id: f.id("endpoints-few/cpu"), what: what + ": CPU", figure: ms(got.CPU), goal: "≤ 0.2 ms + 1.5 × floor"}
	if base != nil {
		l.floor, l.ratio = ms(base.CPU), times(float64(got.CPU), float64(base.CPU))
		l.verdict = judge(float64(got.CPU), float64(200*time.Microsecond)+1.5*float64(base.CPU), false)
	}
	t.add(l)
	reached := line{id: f.id("endpoints-few/reached"), what: what + ": proxies reached", figure: fmt.Sprint(got.Reached),
		goal: fmt.Sprintf("%d", f.spec.Sidecars/100)}
	reached.verdict = judge(float64(got.Reached), float64(f.spec.Sidecars/100), true)
	t.add(reached)

	if got, base, err = f.change(ctx, "virtualservice", n, f.spec.Rule, nil); err != nil {
		return err
	}
	what = f.of("one VirtualService")
	t.cpuLine(f.id("virtualservice"), what, got, base, 2, peer("1.2 s"))
	t.bytesLine(f.id("virtualservice/bytes"), what+": bytes per proxy", got.PerProxy(), 2<<10, peer("556 KB"))
	var floorP99 time.Duration
	if base != nil {
		floorP99 = base.P99()
	}
	goal := 30 * time.Millisecond
	if f.spec.Sidecars > 200 {
		goal = 0 // the goal is about 200; the floor stands beside it
	}
	t.fixedLine(f.id("virtualservice/p99"), what+": p99 change → received", got.P99(), floorP99, goal, peer("1.25 s"))
	return f.added(ctx, t, peer)
}

// added measures a new service.
func (f *fixture) added(ctx context.Context, t *table, peer func(string) string) error {
	got, base, err := f.change(ctx, "service", max(5, f.repetitions()/2), f.spec.Add, f.spec.Remove)
	if err != nil {
		return err
	}
	f.addCPU, f.addFloor = got.CPU, 0
	what := fmt.Sprintf("one Service added to %d, %d sidecars", f.spec.Services, f.spec.Sidecars)
	if base != nil {
		f.addFloor = base.CPU
	}
	t.cpuLine(f.id("service"), what, got, base, 0, peer("1.3 s"))
	t.bytesLine(f.id("service/bytes"), what+": bytes per proxy", got.PerProxy(), 5<<10, peer("560 KB"))
	t.fixedLine(f.id("service/p99"), what+": p99 change → received", got.P99(), p99Of(base), 0, "")
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
func (f *fixture) connectAll(ctx context.Context, s *server, to proxy.Target) (*start, error) {
	var begin time.Time
	var used time.Duration
	f.fleet.Reset()
	if err := f.fleet.Connect(ctx, to, proxy.Cold, func() { begin, used = time.Now(), s.CPU() }); err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeout(ctx, quietMost)
	defer cancel()
	at, err := f.fleet.Configured(limit)
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, s.LogTail())
	}
	if err := quiet(ctx, s.Process, f.fleet); err != nil {
		return nil, err
	}
	c := f.fleet.Count()
	return &start{cpu: s.CPU() - used, took: at.Sub(begin), bytes: c.Bytes, types: c.ByType}, nil
}

// coldStart measures it twice: once to record what is sent, which is the floor's, and once for the time.
func (l *lab) coldStart(ctx context.Context, t *table, spec mesh.Spec, peer func(string) string) (*fixture, *start, error) {
	f, err := l.fixture(ctx, fmt.Sprintf("mesh-%d", spec.Sidecars), spec)
	if err != nil {
		return f, nil, err
	}
	f.fleet.Record(true)
	if _, err := f.connectAll(ctx, f.server, proxy.Target{Address: f.server.plaintext}); err != nil {
		return f, nil, err
	}
	script := f.fleet.Record(false)
	f.fleet.Close()
	f.server.Stop()

	if err := f.openFloor(ctx, floor.Files{}, false); err != nil {
		return f, nil, err
	}
	if err := f.floor.Load(script, true); err != nil {
		return f, nil, err
	}
	base, err := f.coldFloor(ctx, nil)
	if err != nil {
		return f, nil, err
	}

	if f.server, err = l.serve(ctx, f.watcher.Address); err != nil {
		return f, nil, err
	}
	var done <-chan error
	if l.Profile {
		done = l.profile(ctx, f.server, "cold-"+fmt.Sprint(spec.Sidecars))
		time.Sleep(100 * time.Millisecond) // until it has begun
	}
	got, err := f.connectAll(ctx, f.server, proxy.Target{Address: f.server.plaintext})
	if err != nil {
		return f, nil, err
	}
	if done != nil {
		if err := <-done; err != nil {
			return f, nil, err
		}
	}
	f.coldLines(t, got, base, "cold start", peer)
	return f, got, nil
}

// coldFloor lets a fleet start on the floor, which holds the script already.
func (f *fixture) coldFloor(ctx context.Context, to *proxy.Target) (*start, error) {
	fleet := f.fleet
	defer func() { f.fleet = fleet }()
	target := proxy.Target{Address: f.floor.Address}
	if to != nil {
		target.TLS = to.TLS
	}
	f.fleet = proxy.NewFleet(f.spec.Proxies())
	base, err := f.connectAll(ctx, &server{Server: &services.Server{Process: f.floor.Process}}, target)
	f.fleet.Close()
	f.closeFloor()
	return base, err
}

func (f *fixture) coldLines(t *table, got, base *start, row string, peer func(string) string) {
	what := f.of(row)
	n := float64(f.spec.Sidecars)
	const id = "cold"
	t.add(line{
		id: f.id(id + "/cpu"), what: what + ": CPU", figure: ms(got.cpu), floor: ms(base.cpu), ratio: times(float64(got.cpu), float64(base.cpu)),
		goal: "≤ 1.5 × floor", peer: peer("11 s"), verdict: judge(float64(got.cpu), 1.5*float64(base.cpu), false),
	})
	goal := time.Duration(0)
	if f.spec.Sidecars == 200 {
		goal = time.Second
	}
	t.fixedLine(f.id(id+"/all"), what+": last one configured", got.took, base.took, goal, peer("13–18 s"))
	t.bytesLine(f.id(id+"/bytes"), fmt.Sprintf("%s: bytes per proxy (CDS %s, EDS %s, LDS %s, ECDS %s, RDS %s, VHDS %s)", what,
		size(float64(got.types[wire.Cluster])/n),
		size(float64(got.types[wire.Endpoint])/n), size(float64(got.types[wire.Listener])/n), size(float64(got.types[wire.Extension])/n),
		size(float64(got.types[wire.Route])/n), size(float64(got.types[wire.VirtualHost])/n)), float64(got.bytes)/n, -1, peer("2.6 MB"))
}
