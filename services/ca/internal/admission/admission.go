// Package admission bounds how many certificate requests the ca works on at once and how many wait. Package issuance
// calls Gate.Enter before each request; what exceeds the bounds is rejected with a delay after which to retry. Gate
// shares the capacity between callers, so that one with many requests does not delay the others.
package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fairshare"
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

// Gate admits requests. Free workers go to the callers in turn, and to the requests of one caller in order of arrival.
// It is safe for concurrent use.
type Gate struct {
	pool *fairshare.Pool
	wait time.Duration
}

// New makes a Gate; numbers below 1 are an error.
func New(cfg Config) (*Gate, error) {
	if cfg.Workers < 1 || cfg.Queue < 1 || cfg.Wait <= 0 {
		return nil, fmt.Errorf("admission with %d workers, a queue of %d and a wait of %s; each must be more than 0", cfg.Workers, cfg.Queue,
			cfg.Wait)
	}
	return &Gate{wait: cfg.Wait, pool: fairshare.New(fairshare.Config{
		Places: cfg.Workers, Waiting: cfg.Queue, WaitingPolicy: fairshare.Newest, Patience: cfg.Wait, Clock: cfg.Clock,
	})}, nil
}

// Enter waits until a worker is free and returns the function that frees it again; the caller must call it. When the
// gate's queue is full and another caller has at least two more requests waiting, Enter displaces the last request of
// the caller with the longest queue. So callers with many requests leave room for the others, and one caller alone may
// use the whole queue, as the Pods of a Deployment do that start together. Errors are rejections of kind Overloaded.
func (g *Gate) Enter(ctx context.Context, caller string) (leave func(), err error) {
	place, err := g.pool.Take(caller, 0, nil)
	if err == nil {
		err = place.Wait(ctx)
	}
	full, isFull := errors.AsType[*fairshare.FullError](err)
	switch {
	case err == nil:
		return place.Release, nil
	case isFull && full.Own > 1 && full.Own == full.Most:
		return nil, rejection.New(rejection.Overloaded, rejection.CallerLimit,
			"the ca is busy, and %d of the %d requests that wait are of %s; retry later", full.Own, full.All, caller)
	case isFull:
		return nil, rejection.New(rejection.Overloaded, rejection.Overload, "the ca is busy: %d requests are waiting; retry later", full.All)
	case errors.Is(err, fairshare.ErrDisplaced):
		return nil, rejection.New(rejection.Overloaded, rejection.CallerLimit,
			"the ca is busy, and no caller has more requests waiting than %s: its last made room for another caller's; retry later", caller)
	case errors.Is(err, fairshare.ErrPatience):
		return nil, rejection.New(rejection.Overloaded, rejection.Overload,
			"the ca is busy: no worker was free within %s; retry later", g.wait)
	}
	return nil, rejection.New(rejection.Overloaded, rejection.CallerWentAway, "the caller gave up while it waited for a worker: %v", err)
}

// Load returns how many requests are worked on and how many wait.
func (g *Gate) Load() (working, waiting int) {
	l := g.pool.Load()
	return l.Held, l.Waiting
}

// RetryAfter returns the delay that a rejected caller is told: between one and two times Config.Wait. Package issuance
// passes a random fraction between 0 and 1, so that callers rejected together do not retry together.
func (g *Gate) RetryAfter(fraction float64) time.Duration {
	return g.wait + time.Duration(fraction*float64(g.wait))
}
