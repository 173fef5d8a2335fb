package attack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/tests/e2e/internal/fleet"
)

// What must hold while an attack runs.
const (
	// firstWithin is how long a rightful proxy waits for its first configuration, at the most.
	firstWithin = 2 * time.Second
	// slower is how many times as long as at rest a change may take to a rightful proxy.
	slower = 2
	// noise is what a change may take in any case: the attackers share this machine's processors with everybody else,
	// and an attacker's proxy that does not acknowledge may delay the next change by 50 ms.
	noise = 150 * time.Millisecond
	// attempts of which one must show changes as quick as they must be; it is over with the first that is not.
	attempts = 8
	// quickWithin bounds all attempts.
	quickWithin = 15 * time.Second
	// beyond is the share of a limit at which an attack is called off, to spare the machine.
	beyond = 1.2
	// sampled is how often memory is read.
	sampled = 100 * time.Millisecond
	// loadedWithin is how long an attack may take until it has opened everything that it will.
	loadedWithin = 8 * time.Second
	// least is how long a loaded attack is watched, at the least.
	least = 2 * time.Second
)

// attack is one kind of attack. run attacks until ctx ends; it reports what it did to the score, and calls score.loaded
// once everything is open.
type attack struct {
	run func(ctx context.Context, s *score)
	// refused is true if the services must say no, with a reason, to part of it.
	refused bool
	// unmeasured is true where a change to a rightful proxy is not timed, because the attack is not on its way.
	unmeasured bool
}

// score is what an attack has achieved. It is safe for concurrent use.
type score struct {
	mu      sync.Mutex
	done    map[string]int
	refused map[string]int
	sample  map[string]string
	full    chan struct{}
	once    sync.Once
}

func newScore() *score {
	return &score{done: map[string]int{}, refused: map[string]int{}, sample: map[string]string{}, full: make(chan struct{})}
}

// did counts what went through.
func (s *score) did(what string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[what] += n
}

// failed counts what did not, by the reason.
func (s *score) failed(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	reason := status.Code(err).String()
	if reason == codes.Unknown.String() {
		reason = "connection"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[reason]++
	if s.sample[reason] == "" {
		s.sample[reason] = fmt.Sprintf("%.300s", err)
	}
}

// loaded says that the attack has opened everything it will.
func (s *score) loaded() { s.once.Do(func() { close(s.full) }) }

// saysNo is true if something was refused for a reason that is not merely a broken connection.
func (s *score) saysNo() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, code := range []codes.Code{codes.ResourceExhausted, codes.PermissionDenied, codes.InvalidArgument, codes.Unauthenticated} {
		if s.refused[code.String()] > 0 {
			return true
		}
	}
	return false
}

func (s *score) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(s.done)) {
		parts = append(parts, fmt.Sprintf("%d %s", s.done[what], what))
	}
	for _, why := range slices.Sorted(maps.Keys(s.refused)) {
		parts = append(parts, fmt.Sprintf("%d refused as %s (%s)", s.refused[why], why, s.sample[why]))
	}
	return strings.Join(parts, ", ")
}

// gauge watches the memory of one process.
type gauge struct {
	name          string
	pid, restarts int
	limit         int64
	before, peak  int64
}

// memory samples the memory of all services until stopped. It calls exceeded once, when one is far beyond its limit.
type memory struct {
	gauges []*gauge
	stop   chan struct{}
	done   chan struct{}
}

func (f *fixture) sample(t *testing.T, exceeded func(*gauge)) *memory {
	t.Helper()
	f.relieve(t)
	m := &memory{stop: make(chan struct{}), done: make(chan struct{})}
	for _, s := range f.State(t).Services {
		g := &gauge{name: s.Name, pid: s.PID, restarts: s.Restarts, limit: f.limits[s.Program]}
		rss, err := resident(g.pid)
		if err != nil {
			t.Fatalf("%s: %v", g.name, err)
		}
		g.before, g.peak = rss, rss
		m.gauges = append(m.gauges, g)
	}
	go func() {
		defer close(m.done)
		tick := time.NewTicker(sampled)
		defer tick.Stop()
		for {
			for _, g := range m.gauges {
				rss, err := resident(g.pid)
				if err != nil {
					continue // finish sees that it is gone
				}
				g.peak = max(g.peak, rss)
				if float64(rss) > beyond*float64(g.limit) {
					exceeded(g)
				}
			}
			select {
			case <-m.stop:
				return
			case <-tick.C:
			}
		}
	}()
	return m
}

// relieve replaces services that an attack before has left with more than a quarter of their memory limit, so that
// every attack is judged alone.
func (f *fixture) relieve(t *testing.T) {
	t.Helper()
	killed := map[string]int{}
	for _, s := range f.State(t).Services {
		if rss, err := resident(s.PID); err == nil && rss > f.limits[s.Program]/4 {
			t.Logf("%s has kept %d MiB of an attack before, and is replaced", s.Name, rss>>20)
			if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			killed[s.Name] = s.PID
		}
	}
	f.Eventually(t, fleet.Ready, func() error {
		for name, pid := range killed {
			if s := f.service(t, name); s.PID == pid || !s.Ready {
				return fmt.Errorf("%s is not back", name)
			}
		}
		return nil
	})
}

// finish stops sampling and asserts that every service has stayed below its limit, and lives.
func (m *memory) finish(t *testing.T, f *fixture) {
	t.Helper()
	close(m.stop)
	<-m.done
	for _, g := range m.gauges {
		t.Logf("%-15s RSS %4d MiB before, %4d MiB at the peak, limit %4d MiB", g.name, g.before>>20, g.peak>>20, g.limit>>20)
		if g.peak >= g.limit {
			t.Errorf("%s took %d MiB, its limit in deploy/ is %d MiB", g.name, g.peak>>20, g.limit>>20)
		}
		if s := f.service(t, g.name); s.PID != g.pid || s.Restarts != g.restarts {
			t.Errorf("%s has ended and was started again", g.name)
		}
	}
}

// under runs an attack and asserts what must hold meanwhile: memory, a rightful proxy's first configuration, and how
// quickly another one gets changes.
func (f *fixture) under(t *testing.T, a attack) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	address := f.service(t, "xds-server-0").GRPCAddress
	m := f.sample(t, func(g *gauge) {
		cancel(fmt.Errorf("called off: %s is %.0f %% beyond its memory limit", g.name, 100*(beyond-1)))
	})
	fresh := f.identity(t, rightful, time.Hour)
	s := newScore()
	attacking := make(chan struct{})
	go func() { defer close(attacking); a.run(ctx, s) }()
	select {
	case <-s.full:
	case <-time.After(loadedWithin):
	case <-ctx.Done():
	}

	var worst time.Duration
	var firsts int
	first := make(chan error, 1)
	watching, stopFirsts := context.WithCancel(ctx)
	go func() {
		var errs []error
		for watching.Err() == nil {
			took, err := firstConfiguration(watching, fresh, address)
			if watching.Err() != nil {
				break
			}
			firsts++
			worst = max(worst, took)
			if err != nil && len(errs) < 3 {
				errs = append(errs, fmt.Errorf("a rightful proxy got no first configuration within %s: %w", took.Round(time.Millisecond), err))
			}
			rested(watching)
		}
		first <- errors.Join(errs...)
	}()
	enough := time.After(least)
	if !a.unmeasured && ctx.Err() == nil {
		f.quick(ctx, t)
	}
	select {
	case <-ctx.Done():
	case <-enough:
	}
	stopFirsts()
	err := <-first
	calledOff := context.Cause(ctx)
	cancel(nil)
	<-attacking

	t.Logf("the attack: %s", s)
	m.finish(t, f)
	t.Logf("%d first configurations under attack, the slowest in %s", firsts, worst.Round(time.Millisecond))
	switch {
	case calledOff != nil && t.Context().Err() == nil:
		t.Error(calledOff)
	case err != nil:
		t.Error(err)
	case firsts == 0:
		t.Error("no first configuration was served under attack")
	case worst > firstWithin:
		t.Errorf("a rightful proxy waited %s for its first configuration, at most %s is allowed", worst.Round(time.Millisecond), firstWithin)
	}
	if a.refused && !s.saysNo() && !t.Failed() {
		t.Errorf("nothing was refused with a reason: %s", s)
	}
}

// quick asserts that changes reach a rightful proxy about as quickly as at rest, in the best of some attempts.
func (f *fixture) quick(ctx context.Context, t *testing.T) {
	t.Helper()
	allowed := max(slower*f.atRest, noise)
	var all []time.Duration
	for start := time.Now(); len(all) < attempts && time.Since(start) < quickWithin; {
		took, err := f.changed(ctx, allowed)
		if ctx.Err() != nil {
			return // called off, which is reported
		}
		if err != nil {
			t.Errorf("a change did not reach a rightful proxy: %v", err)
			return
		}
		worst := slices.Max(took)
		all = append(all, worst.Round(time.Millisecond))
		if worst <= allowed {
			t.Logf("changes are acknowledged within %s under attack, %s at rest", all, f.atRest.Round(time.Millisecond))
			return
		}
	}
	t.Errorf("changes are acknowledged within %s under attack in %d attempts, at most %s is allowed; at rest %s", all, len(all), allowed,
		f.atRest.Round(time.Millisecond))
}

// killed ends a process that is far beyond its memory limit and cannot be stopped otherwise.
func killed(g *gauge) { _ = syscall.Kill(g.pid, syscall.SIGKILL) }
