// Package admission bounds how many certificate requests the ca works on at once and how many wait. Package issuance
// calls Gate.Enter before each request; what exceeds the bounds is rejected with a delay after which to retry. Gate
// shares the capacity between callers, so that one with many requests does not delay the others.
package admission

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/ca/internal/rejection"
)

// Config bounds a Gate. All numbers are at least 1.
type Config struct {
	// Workers is how many requests may be worked on at once.
	Workers int
	// Queue is how many more may wait.
	Queue int
	// Wait is how long each of those may wait.
	Wait time.Duration
	// Clock measures the wait.
	Clock clock.Clock
}

// Gate admits requests. Each caller has a queue of its own; free workers go to the callers round robin, and to the
// requests of one caller in order of arrival. It is safe for concurrent use.
type Gate struct {
	cfg Config

	mu      sync.Mutex
	working int
	waiting int
	// queues are by caller; turns are the same queues in round-robin order. None is empty.
	queues map[string]*queue
	turns  []*queue
}

// queue holds the waiting requests of one caller, oldest first.
type queue struct {
	caller  string
	waiting []*waiter
}

// waiter is one request in a queue.
type waiter struct {
	queue *queue
	// decided receives nil once the request may work, or the reason why it may not. It has room for one value.
	decided chan error
}

// New makes a Gate; numbers below 1 are an error.
func New(cfg Config) (*Gate, error) {
	if cfg.Workers < 1 || cfg.Queue < 1 || cfg.Wait <= 0 {
		return nil, fmt.Errorf("admission with %d workers, a queue of %d and a wait of %s; each must be more than 0", cfg.Workers, cfg.Queue,
			cfg.Wait)
	}
	return &Gate{cfg: cfg, queues: map[string]*queue{}}, nil
}

// Enter waits until a worker is free and returns the function that frees it again; the caller must call it. When the
// gate's queue is full and another caller has at least two more requests waiting, Enter displaces the last request of
// the caller with the longest queue. So callers with many requests leave room for the others, and one caller alone may
// use the whole queue, as the Pods of a Deployment do that start together. Errors are rejections of kind Overloaded.
func (g *Gate) Enter(ctx context.Context, caller string) (leave func(), err error) {
	w, err := g.enqueue(caller)
	if err != nil {
		return nil, err
	}
	if w == nil {
		return g.leave, nil
	}
	timer := g.cfg.Clock.NewTimer(g.cfg.Wait)
	defer timer.Stop()
	select {
	case err = <-w.decided:
	case <-timer.C():
		err = g.abandon(w, rejection.New(rejection.Overloaded, rejection.Overload, "the ca is busy: no worker was free within %s; retry later",
			g.cfg.Wait))
	case <-ctx.Done():
		gone := rejection.New(rejection.Overloaded, rejection.CallerWentAway, "the caller gave up while it waited for a worker: %v",
			context.Cause(ctx))
		if err = g.abandon(w, gone); err == nil {
			g.leave()
			err = gone
		}
	}
	if err != nil {
		return nil, err
	}
	return g.leave, nil
}

// enqueue returns nil if it found a free worker, a waiter if the request is queued, or a rejection.
func (g *Gate) enqueue(caller string) (*waiter, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.working < g.cfg.Workers {
		g.working++
		return nil, nil
	}
	own := g.queues[caller]
	if g.waiting >= g.cfg.Queue {
		if err := g.displaceFor(own, caller); err != nil {
			return nil, err
		}
		own = g.queues[caller]
	}
	if own == nil {
		own = &queue{caller: caller}
		g.queues[caller] = own
		g.turns = append(g.turns, own)
	}
	w := &waiter{queue: own, decided: make(chan error, 1)}
	own.waiting = append(own.waiting, w)
	g.waiting++
	return w, nil
}

// displaceFor makes room for one more request of a caller by displacing the last one of the longest queue. own is the
// caller's queue, nil if it has none. It returns a rejection if the longest queue is not longer than the caller's would
// become. mu is held.
func (g *Gate) displaceFor(own *queue, caller string) error {
	longest := slices.MaxFunc(g.turns, func(a, b *queue) int { return cmp.Compare(len(a.waiting), len(b.waiting)) })
	held := 0
	if own != nil {
		held = len(own.waiting)
	}
	switch {
	case len(longest.waiting) > held+1:
		last := longest.waiting[len(longest.waiting)-1]
		g.remove(last)
		last.decided <- rejection.New(rejection.Overloaded, rejection.CallerLimit,
			"the ca is busy, and no caller has more requests waiting than %s: its last made room for another caller's; retry later", longest.caller)
		return nil
	case held > 1 && held == len(longest.waiting):
		return rejection.New(rejection.Overloaded, rejection.CallerLimit,
			"the ca is busy, and %d of the %d requests that wait are of %s; retry later", held, g.waiting, caller)
	}
	return rejection.New(rejection.Overloaded, rejection.Overload, "the ca is busy: %d requests are waiting; retry later", g.waiting)
}

// abandon removes a waiting request and returns why. If the request was decided meanwhile, abandon returns that
// decision instead, nil if the request has a worker.
func (g *Gate) abandon(w *waiter, why error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case err := <-w.decided:
		return err
	default:
	}
	g.remove(w)
	return why
}

// remove takes a request out of its caller's queue. mu is held.
func (g *Gate) remove(w *waiter) {
	g.waiting--
	w.queue.waiting = slices.DeleteFunc(w.queue.waiting, func(other *waiter) bool { return other == w })
	if len(w.queue.waiting) == 0 {
		delete(g.queues, w.queue.caller)
		g.turns = slices.DeleteFunc(g.turns, func(other *queue) bool { return other == w.queue })
	}
}

// leave passes the worker to the first request of the caller whose turn it is, or frees it if no request waits.
func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.turns) == 0 {
		g.working--
		return
	}
	turn := g.turns[0]
	g.turns = append(g.turns[1:], turn)
	next := turn.waiting[0]
	g.remove(next)
	next.decided <- nil
}

// Load returns how many requests are worked on and how many wait.
func (g *Gate) Load() (working, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.working, g.waiting
}

// RetryAfter returns the delay that a rejected caller is told: between one and two times Config.Wait. Package issuance
// passes a random fraction between 0 and 1, so that callers rejected together do not retry together.
func (g *Gate) RetryAfter(fraction float64) time.Duration {
	return g.cfg.Wait + time.Duration(fraction*float64(g.cfg.Wait))
}
