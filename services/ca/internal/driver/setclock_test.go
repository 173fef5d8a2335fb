package driver

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
)

// setClock is a clock that somebody sets while the time passes as it does: its timers do not notice.
type setClock struct{ offset atomic.Int64 }

func (c *setClock) Now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

func (*setClock) After(d time.Duration) <-chan time.Time { return time.After(d) }
func (*setClock) NewTimer(d time.Duration) clock.Timer   { return clock.Real().NewTimer(d) }

// passed tells the time since now, by a clock that nobody sets.
func passed() func() time.Duration {
	begun := time.Now()
	return func() time.Duration { return time.Since(begun) }
}

// TestTheClockIsSet sets the ca's clock forward and back, as rotations stand at their steps, for twenty minutes.
// Nothing retires that somebody needs, what is issued and not valid replaces nothing, and all goes on: by itself once
// the last certificate that nobody may know of has expired, or before by an operator who says that there is none.
func TestTheClockIsSet(t *testing.T) {
	for _, step := range []string{"idle", "gate", "renew"} {
		for _, by := range []time.Duration{time.Hour, -time.Hour, 24 * time.Hour, -24 * time.Hour} {
			t.Run(fmt.Sprintf("%s %s", step, by), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { clockSetAt(t, step, by) })
			})
		}
	}
}

func clockSetAt(t *testing.T, step string, by time.Duration) {
	h := newHistory(t, ownRoot)
	l, err := h.start(&disk{})
	testkit.NoError(t, err)
	defer l.stop()
	renewAll := func() {
		for _, p := range h.pods {
			l.renew(p)
		}
		l.check()
	}
	reaches := func(step string) {
		t.Helper()
		for range 60 {
			if l.driver.Status().Step == step {
				return
			}
			pass(tick)
		}
		t.Fatalf("at %s, not %s", l.driver.Status().Step, step)
	}
	order := func() { testkit.NoError(t, l.driver.Do(t.Context(), caapi.Command{Action: caapi.Rotate})) }
	renewAll()
	if step != "idle" {
		order()
		reaches("gate")
	}
	if step == "renew" {
		renewAll()
		reaches("renew")
	}
	h.clock.offset.Store(int64(by))
	for range 20 {
		l.check()
		pass(time.Minute)
		for _, p := range h.pods {
			l.renew(p)
		}
		if s := l.driver.Status(); step != "idle" && s.Step != step {
			t.Fatalf("from %s to %s while the clock is wrong", step, s.Step)
		}
	}
	if s := l.driver.Status(); !strings.Contains(s.Holders.UnknownReason, "the clock was set") {
		t.Errorf("holders %+v", s.Holders)
	}
	h.clock.offset.Store(0)
	if step == "idle" {
		order()
	}
	for range 4 * 5 {
		s := l.driver.Status()
		if s.Step == "idle" && s.Signers[0].ID == 2 {
			renewAll()
			return
		}
		if by.Abs() > time.Hour && s.Lagging.Total == 1 && strings.HasPrefix(s.Lagging.First[0].Name, "unknown certificates") {
			testkit.NoError(t, l.driver.Do(t.Context(), caapi.Command{Action: caapi.Accept, Holder: s.Lagging.First[0].Name}))
		}
		renewAll()
		pass(15 * time.Minute)
	}
	s := l.driver.Status()
	t.Fatalf("stands at %s, waits for %v and %+v, problems %v", s.Step, s.Waits, s.Lagging, s.Problems)
}
