package quota

import (
	"fmt"
	"testing"
	"time"
)

const atOnce = 20

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// TestAllowCountsWhatItRefused: the first call that is allowed again counts those that were not, and those whose work
// failed.
func TestAllowCountsWhatItRefused(t *testing.T) {
	c := New(time.Minute, atOnce)
	allowed := 0
	for range 1000 {
		if _, ok := c.Allow("greedy", epoch); ok {
			allowed++
		}
	}
	if allowed != atOnce {
		t.Errorf("%d of a thousand allowed, want %d", allowed, atOnce)
	}
	if n, ok := c.Allow("modest", epoch); !ok || n != 0 {
		t.Errorf("another caller: %d suppressed, allowed: %t", n, ok)
	}
	c.Suppress("greedy", epoch, 5)
	now := epoch.Add(time.Minute)
	if n, ok := c.Allow("greedy", now); !ok || n != 1000-atOnce+5 {
		t.Errorf("a minute later: %d suppressed, allowed: %t", n, ok)
	}
	if _, ok := c.Allow("greedy", now); ok {
		t.Error("a second one in the same minute is allowed")
	}
}

// TestCallersAreForgotten: callers beyond those that are remembered share one quota, and a caller whose quota is full
// again is forgotten.
func TestCallersAreForgotten(t *testing.T) {
	c := New(time.Minute, atOnce)
	allowed := 0
	for i := range 3 * maxCallers {
		if _, ok := c.Allow(fmt.Sprint(i), epoch); ok {
			allowed++
		}
	}
	if len(c.callers) != maxCallers || allowed != maxCallers+atOnce {
		t.Errorf("%d callers remembered and %d allowed, want %d and %d", len(c.callers), allowed, maxCallers, maxCallers+atOnce)
	}
	if _, ok := c.Allow("late", epoch.Add(time.Minute)); !ok || len(c.callers) != 1 {
		t.Errorf("a minute later %d callers are remembered, want the one", len(c.callers))
	}
}
