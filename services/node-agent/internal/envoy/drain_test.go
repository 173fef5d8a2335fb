package envoy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// fakeEnvoy is an admin interface that reports a number of open connections.
type fakeEnvoy struct {
	mu     sync.Mutex
	active uint64
	err    error
	posts  []string
}

func (f *fakeEnvoy) Post(_ context.Context, path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.posts = append(f.posts, path)
	return f.err
}

func (f *fakeEnvoy) Stats(context.Context, string) (map[string]uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return map[string]uint64{
		"listener.10.0.0.7_9080.downstream_cx_active":          f.active,
		"listener.10.0.0.7_9080.worker_0.downstream_cx_active": f.active,
		"listener.agent_ready.downstream_cx_active":            3,
		"listener.admin.downstream_cx_active":                  1,
		"http.agent_ready.downstream_rq_active":                1,
	}, f.err
}

func (f *fakeEnvoy) set(active uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.active, f.err = active, err
}

func TestDrain(t *testing.T) {
	away := errors.New("connection refused")
	for _, tc := range []struct {
		name   string
		policy DrainPolicy
		active uint64
		err    error
		// steps advance the clock while the drain must go on. Then, after idle and the step last, it must have ended.
		steps []time.Duration
		idle  bool
		last  time.Duration
	}{
		{name: "for a fixed time, however idle", policy: DrainPolicy{Termination: 5 * time.Second},
			steps: []time.Duration{4900 * time.Millisecond}, last: 100 * time.Millisecond},
		{name: "for a fixed time, however busy", policy: DrainPolicy{Termination: 5 * time.Second}, active: 7,
			steps: []time.Duration{4900 * time.Millisecond}, last: 100 * time.Millisecond},
		{name: "no time", policy: DrainPolicy{}, active: 7},
		{name: "until idle: idle at once", policy: DrainPolicy{ExitOnZero: true}},
		{name: "until idle: minimum first", policy: DrainPolicy{ExitOnZero: true, Minimum: 3 * time.Second},
			steps: []time.Duration{2 * time.Second}, last: time.Second},
		{name: "until idle: waits", policy: DrainPolicy{ExitOnZero: true, Minimum: time.Second}, active: 2,
			steps: []time.Duration{time.Second, drainPoll, drainPoll}, idle: true, last: drainPoll},
		{name: "until idle: deadline", policy: DrainPolicy{ExitOnZero: true, Minimum: time.Second, Termination: 2 * time.Second}, active: 2,
			steps: []time.Duration{time.Second, drainPoll}, last: time.Second},
		{name: "until idle: deadline before minimum", policy: DrainPolicy{ExitOnZero: true, Minimum: time.Minute, Termination: time.Second},
			active: 2, steps: []time.Duration{900 * time.Millisecond}, last: 100 * time.Millisecond},
		{name: "until idle: silence is not idle", policy: DrainPolicy{ExitOnZero: true, Termination: time.Second}, err: away,
			steps: []time.Duration{drainPoll, drainPoll}, last: time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			envoy := &fakeEnvoy{}
			envoy.set(tc.active, tc.err)
			clock := testkit.NewClock(time.Now())
			d := &Drain{Admin: envoy, Policy: tc.policy, Ignore: []string{"agent_ready"}, Clock: clock, Log: testkit.Logger(t)}
			done := make(chan struct{})
			go func() {
				defer close(done)
				d.Run(t.Context())
			}()
			for _, step := range tc.steps {
				clock.WaitFor(t, 1) // still draining
				clock.Advance(step)
			}
			if tc.last > 0 {
				clock.WaitFor(t, 1)
				if tc.idle {
					envoy.set(0, nil)
				}
				clock.Advance(tc.last)
			}
			select {
			case <-done:
			case <-time.After(testkit.Patience):
				t.Fatal("the drain does not end")
			}
			if want := []string{"/healthcheck/fail", "/drain_listeners?graceful"}; !slices.Equal(envoy.posts, want) {
				t.Errorf("Envoy was told %v, want %v", envoy.posts, want)
			}
		})
	}
}

func TestCountActive(t *testing.T) {
	for _, tc := range []struct {
		name  string
		stats map[string]uint64
		want  uint64
	}{
		{"nothing", nil, 0},
		{"idle HTTP connections", map[string]uint64{
			"listener.10.0.0.7_9080.downstream_cx_active": 3, "http.inbound_9080.downstream_cx_active": 3,
			"http.inbound_9080.downstream_rq_active": 0,
		}, 0},
		{"one connection with many requests", map[string]uint64{
			"listener.10.0.0.7_9080.downstream_cx_active": 1, "http.inbound_9080.downstream_cx_active": 1,
			"http.inbound_9080.downstream_rq_active": 4,
		}, 4},
		{"TCP beside idle HTTP", map[string]uint64{
			"listener.10.0.0.7_9080.downstream_cx_active": 3, "listener.10.0.0.7_3306.downstream_cx_active": 2,
			"http.inbound_9080.downstream_cx_active": 3,
		}, 2},
		{"own listeners and shares of workers", map[string]uint64{
			"listener.10.0.0.7_9080.downstream_cx_active": 1, "listener.10.0.0.7_9080.worker_0.downstream_cx_active": 1,
			"listener.agent_ready.downstream_cx_active": 2, "http.agent_ready.downstream_cx_active": 2, "http.agent_ready.downstream_rq_active": 1,
			"http.admin.downstream_rq_active": 1, "http.admin.downstream_cx_active": 1,
		}, 1},
		{"read while connections close", map[string]uint64{
			"listener.10.0.0.7_9080.downstream_cx_active": 1, "http.inbound_9080.downstream_cx_active": 2,
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := countActive(tc.stats, []string{"agent_ready"}); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestDrainEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	clock := testkit.NewClock(time.Now())
	d := &Drain{Admin: &fakeEnvoy{active: 1}, Policy: DrainPolicy{ExitOnZero: true}, Clock: clock, Log: testkit.Logger(t)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Run(ctx)
	}()
	clock.WaitFor(t, 1)
	cancel()
	select {
	case <-done:
	case <-time.After(testkit.Patience):
		t.Fatal("the drain does not end")
	}
}

func TestParseStats(t *testing.T) {
	got := parseStats("server.state: 0\nserver.version: 12\nx.y: No recorded values\nhistogram: P0(nan,1)\n\nnonsense\n")
	if len(got) != 2 || got["server.version"] != 12 {
		t.Errorf("got %v", got)
	}
	if _, ok := got["server.state"]; !ok {
		t.Error("a zero is a value")
	}
}

func TestArgs(t *testing.T) {
	o := Options{Bootstrap: "/s/envoy-bootstrap.json", Concurrency: 2, DrainTime: 45 * time.Second, LogLevel: "warning",
		ComponentLog: "misc:error", FileFlush: time.Second, FileFlushKB: 8}
	want := []string{
		"-c", "/s/envoy-bootstrap.json", "--disable-hot-restart", "--concurrency", "2", "--drain-time-s", "45",
		"--drain-strategy", "immediate", "--log-level", "warning", "--file-flush-interval-msec", "1000", "--file-flush-min-size-kb", "8",
		"--component-log-level", "misc:error",
	}
	if got := o.Args(); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// An order to drain that did not reach Envoy leaves the drain to the end.
func TestDrainNowThatEnvoyDoesNotHear(t *testing.T) {
	envoy, drained := &fakeEnvoy{}, 0
	s := &Supervisor{Admin: envoy, OnDrain: func() { drained++ }, Log: testkit.Logger(t)}
	envoy.set(0, errors.New("connection refused"))
	if err := s.DrainNow(t.Context()); err == nil || s.skipDrain.Load() || drained != 1 {
		t.Errorf("away: %v, the drain is skipped %t, readiness ended %d times", err, s.skipDrain.Load(), drained)
	}
	envoy.set(0, nil)
	if err := s.DrainNow(t.Context()); err != nil || !s.skipDrain.Load() || drained != 1 {
		t.Errorf("there: %v, the drain is skipped %t, readiness ended %d times", err, s.skipDrain.Load(), drained)
	}
}
