package configsource

import (
	"context"
	"time"

	"fairlead.dev/pkg/lanes"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// Debounce: a revision of configuration waits while proxies have to answer the one before, for maxDebounce at most, and
// only as long as an ACK or NACK arrives within each quietPeriod. Revisions that arrive meanwhile are merged with it.
const (
	maxDebounce = time.Second
	quietPeriod = 50 * time.Millisecond
)

// Gathering: after an update of endpoints the next one waits as long as the update has taken, so that endpoints that
// never rest use half of a processor at most; and for maxGather at most. The first change after that goes at once.
const maxGather = 10 * time.Millisecond

// While configuration is applied, endpoints cannot be: it is applied in batches of about batchTime, or of longBatch
// while endpoints rest.
const (
	batchTime = 10 * time.Millisecond
	longBatch = 50 * time.Millisecond
	// batchEvery is the time between the beginnings of two batches while endpoints change: their updates find the
	// processor free in between.
	batchEvery = 50 * time.Millisecond
)

// applier applies what is in the queue. Its fields are used by its goroutine only.
type applier struct {
	*Client
	debounce debounce
	// gatherUntil is when the next update of endpoints may begin.
	gatherUntil time.Time
	// orderedAt is when a batch of configuration was last begun.
	orderedAt time.Time
	// pace is that of configuration.
	pace lanes.Pace
	// acked is the last revision that was acknowledged to config-watcher.
	acked *configv1.Revision
	// withheld has a Jwks at most once.
	withheld map[mesh.Key]withheldKeys
}

// debounce is the wait of the ordered lane for the proxies; the zero debounce has not begun.
type debounce struct {
	begun, quietUntil time.Time
	answered          <-chan struct{}
	progress          uint64
	over              bool
}

// run applies what is in the queue until ctx ends.
func (a *applier) run(ctx context.Context) {
	timer := a.cfg.Clock.NewTimer(maxDebounce)
	timer.Stop()
	for ctx.Err() == nil {
		wait, applied := a.step()
		if applied {
			continue
		}
		var due <-chan time.Time
		if wait > 0 {
			timer.Reset(wait)
			due = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-a.ready:
		case <-a.debounce.answered:
		case <-due:
		}
		timer.Stop()
	}
}

// step applies one of the lanes if it is its turn. Otherwise wait is when a turn may come: 0 is when something comes
// into the queue, or the proxies have answered.
func (a *applier) step() (wait time.Duration, applied bool) {
	a.mu.Lock()
	endpoints, ordered, urgent := len(a.queue.endpoints.List) > 0, len(a.queue.ordered) > 0, a.queue.urgent
	a.mu.Unlock()
	now := a.cfg.Clock.Now()
	gathered := !now.Before(a.gatherUntil)
	due, nextDue := a.due(now)
	if len(due) > 0 {
		a.applyDue(due)
		return 0, true
	}
	if endpoints && gathered {
		a.applyEndpoints(now)
		return 0, true
	}
	if ordered && (urgent && gathered || a.debounced(now) && !now.Before(a.nextBatch(now))) {
		a.debounce = debounce{}
		a.applyOrdered(now, urgent)
		return 0, true
	}
	if endpoints || urgent {
		wait = a.gatherUntil.Sub(now)
	}
	if ordered {
		next := a.debounce.quietUntil
		if a.debounce.over {
			next = a.nextBatch(now)
		}
		if wait <= 0 || next.Sub(now) < wait {
			wait = next.Sub(now)
		}
	}
	if !nextDue.IsZero() && (wait <= 0 || nextDue.Sub(now) < wait) {
		wait = nextDue.Sub(now)
	}
	return wait, false
}

// nextBatch is when the next batch of configuration may begin.
func (a *applier) nextBatch(now time.Time) time.Time {
	if a.pace.Active(now) {
		return a.orderedAt.Add(batchEvery)
	}
	return now
}

// debounced reports whether the ordered lane has waited long enough for the proxies.
func (a *applier) debounced(now time.Time) bool {
	if a.cfg.Busy == nil {
		return true
	}
	d := &a.debounce
	if d.begun.IsZero() {
		*d = debounce{begun: now, quietUntil: now.Add(quietPeriod)}
		d.answered, d.progress = a.cfg.Busy()
		d.over = d.answered == nil
	}
	select {
	case <-d.answered:
		d.over = true
	default:
	}
	if !d.over && !now.Before(d.quietUntil) {
		_, reached := a.cfg.Busy()
		d.over = reached == d.progress || now.Sub(d.begun) >= maxDebounce
		d.progress, d.quietUntil = reached, now.Add(quietPeriod)
	}
	if d.over {
		d.answered = nil
	}
	return d.over
}

// applyEndpoints applies the lane of endpoints.
func (a *applier) applyEndpoints(now time.Time) {
	a.pace.Endpoints(now)
	a.apply(a.cfg.ApplyEndpoints, func(q *queue) []*revision {
		if len(q.ordered) > 0 {
			a.metrics.overtaken.Inc()
		}
		return []*revision{q.takeEndpoints()}
	})
	a.gather(now)
}

// applyOrdered applies a batch of the ordered lane; urgent is true if endpoints wait for it.
func (a *applier) applyOrdered(now time.Time, urgent bool) {
	if urgent {
		a.pace.Endpoints(now)
	}
	a.orderedAt = now
	n := a.apply(a.cfg.Apply, func(q *queue) []*revision { return q.takeOrdered(a.pace.Limit(now, 0)) })
	a.pace.Took(n, a.cfg.Clock.Now().Sub(now))
	if urgent {
		a.gather(now)
	}
}

// gather lets the next update of endpoints wait as long as the one that has begun at the given time has taken.
func (a *applier) gather(begun time.Time) {
	now := a.cfg.Clock.Now()
	a.gatherUntil = now.Add(min(now.Sub(begun), maxGather))
}

// apply makes the next snapshot of what take takes, hands it to the function, and acknowledges the revision. It returns
// the number of changes.
func (a *applier) apply(to func(*mesh.Snapshot, *mesh.Change), take func(*queue) []*revision) (n int) {
	a.stateMu.Lock()
	a.mu.Lock()
	revisions := take(&a.queue)
	at := a.queue.position()
	a.metrics.queued.Set(float64(a.queue.revisions))
	a.mu.Unlock()
	var change *mesh.Change
	for _, r := range revisions {
		upserts, removed := a.withhold(r)
		next, c := a.state.Apply(at.revision, upserts, removed)
		for _, err := range c.Rejected {
			a.cfg.Log.Error("resource not understood, its last good version stays", "error", err)
		}
		a.metrics.rejected.Add(float64(len(c.Rejected)))
		if a.state = next; change == nil {
			change = c
		} else {
			change.Merge(c)
		}
		n += len(r.List)
	}
	state := a.state
	a.stateMu.Unlock()
	a.metrics.resources.Set(float64(state.Len()))
	to(state, change)
	a.mu.Lock()
	a.applied = true
	a.mu.Unlock()
	if at.revision != a.acked {
		a.acked = at.revision
		ack := &configv1.WatchAck{Sequence: at.revision.GetSequence()}
		// If the stream has broken meanwhile, watch gets the error from Recv.
		_ = at.from.Send(&configv1.WatchRequest{Message: &configv1.WatchRequest_Ack{Ack: ack}})
	}
	return n
}
