// Package admission bounds how much work the ca takes on at once, so that a thundering herd costs the callers a retry and not the ca its memory or its
// health checks.
package admission

import (
	"context"
	"fmt"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/ca/internal/refusal"
)

// Config bounds the gate. All numbers are at least 1.
type Config struct {
	// Workers is how many requests are worked on at once.
	Workers int
	// Queue is how many more may wait.
	Queue int
	// Wait is how long each may wait.
	Wait time.Duration
	// Clock measures the wait.
	Clock clock.Clock
}

// Gate admits requests, first come, first served. It is safe for concurrent use.
type Gate struct {
	cfg   Config
	slots chan struct{}

	mu     sync.Mutex
	inside int
	caller map[string]int
}

// New makes a gate.
func New(cfg Config) (*Gate, error) {
	if cfg.Workers < 1 || cfg.Queue < 1 || cfg.Wait <= 0 {
		return nil, fmt.Errorf("admission with %d workers, a queue of %d and a wait of %s; each must be more than 0", cfg.Workers, cfg.Queue, cfg.Wait)
	}
	return &Gate{cfg: cfg, slots: make(chan struct{}, cfg.Workers), caller: map[string]int{}}, nil
}

// Enter waits for a worker's place and returns the function that gives it back. A caller who already has half of all places and queue positions is refused,
// so that one identity gone wild leaves room for the others. Errors are refusals of kind Overloaded.
func (g *Gate) Enter(ctx context.Context, caller string) (leave func(), err error) {
	if err := g.count(caller); err != nil {
		return nil, err
	}
	select {
	case g.slots <- struct{}{}:
		return func() { <-g.slots; g.uncount(caller) }, nil
	default:
	}
	timer := g.cfg.Clock.NewTimer(g.cfg.Wait)
	defer timer.Stop()
	select {
	case g.slots <- struct{}{}:
		return func() { <-g.slots; g.uncount(caller) }, nil
	case <-timer.C():
		g.uncount(caller)
		return nil, refusal.New(refusal.Overloaded, refusal.Overload, "the ca is busy: no worker was free within %s; retry later", g.cfg.Wait)
	case <-ctx.Done():
		g.uncount(caller)
		return nil, refusal.New(refusal.Overloaded, refusal.CallerWentAway, "the caller gave up while it waited for a worker: %v", context.Cause(ctx))
	}
}

func (g *Gate) count(caller string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := g.cfg.Workers + g.cfg.Queue
	if g.inside >= most {
		return refusal.New(refusal.Overloaded, refusal.Overload, "the ca is busy: %d requests are waiting; retry later", g.cfg.Queue)
	}
	if g.caller[caller] >= (most+1)/2 {
		return refusal.New(refusal.Overloaded, refusal.CallerLimit, "%d requests of %s are waiting, half of what the ca takes; retry later", g.caller[caller], caller)
	}
	g.inside++
	g.caller[caller]++
	return nil
}

func (g *Gate) uncount(caller string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.caller[caller]--; g.caller[caller] == 0 {
		delete(g.caller, caller)
	}
}

// Load is how many requests are worked on and how many wait.
func (g *Gate) Load() (working, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	working = len(g.slots)
	return working, max(0, g.inside-working)
}

// RetryAfter is what a refused caller is told: at least the time a request may wait here, and up to twice that, so that the callers refused together do
// not come back together. The fraction is random, between 0 and 1.
func (g *Gate) RetryAfter(fraction float64) time.Duration {
	return g.cfg.Wait + time.Duration(fraction*float64(g.cfg.Wait))
}
