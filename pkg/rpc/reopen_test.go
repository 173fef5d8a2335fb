package rpc_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/rpc"
)

// instant is a clock whose timers fire at once.
type instant struct{ clock.Clock }

func (instant) After(time.Duration) <-chan time.Time {
	c := make(chan time.Time, 1)
	c <- time.Time{}
	return c
}

// The pause doubles up to its limit, and is the first one again after a useful stream.
func TestReopenerPauses(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	broken := errors.New("broken")
	var pauses []time.Duration
	opened := 0
	open := func(context.Context) (bool, error) {
		if opened++; opened == 10 {
			cancel()
		}
		return opened == 8, broken
	}
	rpc.Reopener{Clock: instant{}, Rand: func() float64 { return 0.5 }}.Run(ctx, open, func(err error, pause time.Duration) {
		if !errors.Is(err, broken) {
			t.Error(err)
		}
		pauses = append(pauses, pause/time.Millisecond)
	})
	if want := []time.Duration{100, 200, 400, 800, 1600, 3000, 3000, 100, 200}; !slices.Equal(pauses, want) {
		t.Errorf("paused for %d ms, want %d", pauses, want)
	}
}
