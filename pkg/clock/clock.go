// Package clock lets code take the time from a Clock, so that tests decide it: code gets one in its Config, Real in
// programs and testkit.Clock in tests.
package clock

import (
	"context"
	"time"
)

// Clock tells the time and makes timers. Implementations are safe for concurrent use.
type Clock interface {
	Now() time.Time
	// After sends the time once on the returned channel when d has passed.
	After(d time.Duration) <-chan time.Time
	NewTimer(d time.Duration) Timer
}

// Timer is time.Timer behind an interface. As with Go 1.23 timers, no stale value is received from C after Stop or
// Reset.
type Timer interface {
	C() <-chan time.Time
	Stop() bool
	Reset(d time.Duration) bool
}

// Real is the machine's clock.
func Real() Clock { return realClock{} }

// Sleep waits until d has passed, and reports whether it has: it returns false if ctx ends before.
func Sleep(ctx context.Context, c Clock, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c.After(d):
		return true
	}
}

// Rounds calls round at once, then at the time that it has returned last, or earlier whenever wake is received from,
// until ctx ends.
func Rounds(ctx context.Context, c Clock, wake <-chan struct{}, round func() (next time.Time)) {
	for {
		timer := c.NewTimer(max(round().Sub(c.Now()), 0))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-wake:
			timer.Stop()
		case <-timer.C():
		}
	}
}

// Or returns c, or the machine's clock if c is nil; for optional Config fields.
func Or(c Clock) Clock {
	if c == nil {
		return Real()
	}
	return c
}

type realClock struct{}

func (realClock) Now() time.Time                         { return time.Now() }
func (realClock) After(d time.Duration) <-chan time.Time { return time.After(d) }
func (realClock) NewTimer(d time.Duration) Timer         { return realTimer{time.NewTimer(d)} }

type realTimer struct{ t *time.Timer }

func (r realTimer) C() <-chan time.Time        { return r.t.C }
func (r realTimer) Stop() bool                 { return r.t.Stop() }
func (r realTimer) Reset(d time.Duration) bool { return r.t.Reset(d) }
