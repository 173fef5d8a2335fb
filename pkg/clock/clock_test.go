package clock_test

import (
	"context"
	"testing"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
)

func TestRealTimersFire(t *testing.T) {
	c := clock.Real()
	before := c.Now()
	<-c.After(time.Millisecond)
	timer := c.NewTimer(time.Hour)
	if !timer.Stop() {
		t.Error("Stop of a running timer said it was not running")
	}
	timer.Reset(time.Millisecond)
	<-timer.C()
	if since := c.Now().Sub(before); since < 2*time.Millisecond {
		t.Errorf("two waits of 1 ms took %s", since)
	}
}

func TestOr(t *testing.T) {
	fake := testkit.NewClock(time.Unix(0, 0))
	if clock.Or(fake) != clock.Clock(fake) {
		t.Error("a given clock is replaced")
	}
	if clock.Or(nil) == nil {
		t.Error("no clock without one given")
	}
}

func TestSleepEndsWithTheTimeOrTheContext(t *testing.T) {
	if !clock.Sleep(t.Context(), clock.Real(), time.Millisecond) {
		t.Error("the time has passed, and Sleep says that the context has ended")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if clock.Sleep(ended, clock.Real(), time.Hour) {
		t.Error("the context has ended, and Sleep says that the time has passed")
	}
}

func TestRoundsComeWhenTheyAreDueOrWoken(t *testing.T) {
	c, wake, rounds := testkit.NewClock(time.Unix(0, 0)), make(chan struct{}), make(chan time.Time)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		clock.Rounds(ctx, c, wake, func() time.Time {
			rounds <- c.Now()
			return c.Now().Add(time.Minute)
		})
	}()
	want := func(what string, seconds int64) {
		t.Helper()
		if at := <-rounds; at.Unix() != seconds {
			t.Errorf("%s: a round at %d s, want %d", what, at.Unix(), seconds)
		}
		c.WaitFor(t, 1)
	}
	want("the first", 0)
	c.Advance(time.Minute)
	want("when it is due", 60)
	c.Advance(time.Second)
	wake <- struct{}{}
	want("woken", 61)
	cancel()
	<-ended
}
