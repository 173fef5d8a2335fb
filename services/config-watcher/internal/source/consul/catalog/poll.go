package catalog

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

const (
	// pollers is how many services without a watch are read at once.
	pollers = 8
	// pollPerSecond bounds their readings; those that were never read come faster.
	pollPerSecond  = 40
	firstPerSecond = 400
	// pollInterval is the least time between two readings of one service without a watch.
	pollInterval = 5 * time.Second
)

// poll reads services that have no watch, one after the other, until ctx ends.
func (r *reader) poll(ctx context.Context) {
	again, first := rate.NewLimiter(pollPerSecond/pollers, 1), rate.NewLimiter(firstPerSecond/pollers, 1)
	for ctx.Err() == nil {
		changed := r.work.Changed()
		s, in := r.next()
		switch {
		case s == nil:
			r.idle(ctx, changed, in)
			continue
		case s.read && !wait(ctx, r.clock, again), !s.read && !wait(ctx, r.clock, first), !r.ready(ctx, s):
		default:
			r.polledOnce(s, r.step(ctx, s, false))
		}
		r.done(s)
	}
}

// next takes the service whose turn it is; none, and when it will be the turn of one, if none is due.
func (r *reader) next() (s *service, in time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in = time.Hour
	now := r.clock.Now()
	for i, p := range r.polled {
		if p.busy {
			continue
		}
		if d := p.due.Sub(now); d > 0 {
			in = min(in, d)
			continue
		}
		copy(r.polled[i:], r.polled[i+1:])
		r.polled[len(r.polled)-1] = p
		p.busy = true
		return p, 0
	}
	return nil, in
}

func (r *reader) idle(ctx context.Context, changed <-chan struct{}, d time.Duration) {
	t := r.clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
	case <-changed:
	case <-ctx.Done():
	}
}

// polledOnce takes over how a reading went, and when the next one is due.
func (r *reader) polledOnce(s *service, err error) {
	d := pollInterval
	if r.note(s, err); err != nil {
		d = max(d, backoff(s.failures))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.due = r.clock.Now().Add(d)
}

// done gives a service back.
func (r *reader) done(s *service) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.busy = false
}
