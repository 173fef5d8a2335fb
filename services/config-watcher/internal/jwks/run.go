package jwks

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/jwks"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/proto/fairlead/contract"
)

// Run fetches keys when it is time, and ends last good ones that are too old, until ctx ends.
func (t *Table) Run(ctx context.Context) error {
	t.sweep()
	var fetches sync.WaitGroup
	defer fetches.Wait()
	clock.Rounds(ctx, t.cfg.Clock, t.wake, func() time.Time { return t.round(ctx, &fetches) })
	return nil
}

// idle is the longest time between two rounds.
const idle = time.Hour

// round starts the fetches that are due, releases and expires what is, and returns when it is to be called again.
func (t *Table) round(ctx context.Context, fetches *sync.WaitGroup) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.cfg.Clock.Now()
	next := now.Add(idle)
	sooner := func(at time.Time) {
		if at.Before(next) {
			next = at
		}
	}
	for _, source := range slices.SortedFunc(maps.Keys(t.entries), compareSources) {
		e := t.entries[source]
		if e.expire(now) {
			t.dirty[e] = true
			t.cfg.Log.Error("last good keys have become too old; tokens that they verified are refused", "source", source.String(),
				"fetched", e.fetched, "error", e.err)
		}
		if e.keys != nil {
			sooner(e.fetched.Add(contract.KeysMaxAge))
		}
		switch {
		case e.running || !e.admitted:
		case !e.next.After(now):
			e.running = true
			fetches.Go(func() { t.fetch(ctx, e) })
		default:
			sooner(e.next)
		}
	}
	pass, by := t.release(nil)
	for _, h := range t.held {
		sooner(h.deadline)
	}
	if len(pass) > 0 || len(t.dirty) > 0 {
		t.pass(by, pass)
	}
	return next
}

// fetch makes one attempt for a source.
func (t *Table) fetch(ctx context.Context, e *entry) {
	t.mu.Lock()
	namespace, timeout := e.namespace(), e.timeout()
	t.mu.Unlock()
	var got answer
	place, err := t.pool.Take(namespace, 0, nil)
	if err == nil {
		defer place.Release()
		if err = place.Wait(ctx); err == nil {
			requests, cancel := context.WithTimeout(ctx, timeout)
			got = t.cfg.Fetcher.fetch(requests, e.source)
			cancel()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil || ctx.Err() != nil {
		e.running = false
		return
	}
	t.results[got.result()]++
	now := t.cfg.Clock.Now()
	first := !e.tried || e.problem != got.problem
	e.take(got, now, t.cfg.Shortest, t.cfg.Random())
	switch {
	case got.err == nil:
		t.save(e)
		if first {
			t.cfg.Log.Info("keys are fetched", "source", e.source.String(), "keys", e.count, "dropped", jwks.Told(e.dropped))
		}
	case first:
		t.cfg.Log.Warn("keys cannot be fetched, trying again; the last good ones count", "source", e.source.String(), "error", got.err,
			"last_good", e.keys != nil)
	}
	t.dirty[e] = true
	pass, by := t.release(nil)
	t.pass(by, pass)
	notify.Wake(t.wake)
}
