package testkit

import (
	"slices"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/clock"
)

// Clock is a clock.Clock that stands still between calls of Advance.
type Clock struct {
	mu      sync.Mutex
	now     time.Time
	timers  []*fakeTimer
	changed chan struct{}
}

var _ clock.Clock = (*Clock)(nil)

// NewClock returns a clock that stands at start.
func NewClock(start time.Time) *Clock {
	return &Clock{now: start, changed: make(chan struct{})}
}

// Now returns the clock's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// After is NewTimer(d).C().
func (c *Clock) After(d time.Duration) <-chan time.Time { return c.NewTimer(d).C() }

// NewTimer returns a timer that fires when the clock was advanced by d.
func (c *Clock) NewTimer(d time.Duration) clock.Timer {
	t := &fakeTimer{clock: c, ch: make(chan time.Time, 1)}
	t.Reset(d)
	return t
}

// Advance moves the clock and fires the timers that are due, in their order.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	slices.SortStableFunc(c.timers, func(a, b *fakeTimer) int { return a.due.Compare(b.due) })
	for len(c.timers) > 0 && !c.timers[0].due.After(c.now) {
		t := c.timers[0]
		c.timers = c.timers[1:]
		t.ch <- c.now
	}
	c.wake()
}

// Waiters counts the running timers.
func (c *Clock) Waiters() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// WaitFor waits until at least n timers run, so that code under test sees the next Advance. It fails the test after
// Patience.
func (c *Clock) WaitFor(t testing.TB, n int) {
	t.Helper()
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	for {
		c.mu.Lock()
		have, changed := len(c.timers), c.changed
		c.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			t.Fatalf("%d timers are running, waited for %d", have, n)
		}
	}
}

// NextIn returns the time until the next timer fires; false if none runs.
func (c *Clock) NextIn() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.timers) == 0 {
		return 0, false
	}
	next := slices.MinFunc(c.timers, func(a, b *fakeTimer) int { return a.due.Compare(b.due) })
	return next.due.Sub(c.now), true
}

// wake is called with mu held.
func (c *Clock) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

type fakeTimer struct {
	clock *Clock
	ch    chan time.Time
	due   time.Time
}

func (t *fakeTimer) C() <-chan time.Time { return t.ch }

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.stop()
}

func (t *fakeTimer) stop() bool {
	select {
	case <-t.ch: // no stale value is received after Stop, as with Go 1.23's timers
	default:
	}
	i := slices.Index(t.clock.timers, t)
	if i < 0 {
		return false
	}
	t.clock.timers = slices.Delete(t.clock.timers, i, i+1)
	t.clock.wake()
	return true
}

func (t *fakeTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	was := t.stop()
	t.due = t.clock.now.Add(d)
	if d <= 0 {
		t.ch <- t.clock.now
		return was
	}
	t.clock.timers = append(t.clock.timers, t)
	t.clock.wake()
	return was
}
