package webhook

import (
	"sync"
	"time"
)

// slots bounds what is read, waits and runs at once, in all and for each caller. Callers prove nothing, so those with
// many requests make room for others: beyond the total, the caller with the most requests that do not run yet gives up
// the oldest of these to a caller with fewer, and beyond its own share a caller gives up one that it has not sent
// within slowAfter.
type slots struct {
	total, each int

	mu   sync.Mutex
	open map[*slot]struct{}
}

// slowAfter is the time within which a caller sends a request, unless it is slow; an API server takes milliseconds.
const slowAfter = time.Second

// slot is the place of one request.
type slot struct {
	slots  *slots
	caller string
	since  time.Time
	// unread is true until the whole request has been read, and runs from its turn on. abort ends the reading, or the
	// waiting.
	unread, runs bool
	abort        func()
}

func newSlots(total, each int) *slots {
	return &slots{total: total, each: each, open: map[*slot]struct{}{}}
}

// take takes a slot for a caller whose request is read from now on; nil if there is none. If the slot is given to
// another caller meanwhile, abort is called.
func (s *slots) take(caller string, now time.Time, abort func()) *slot {
	s.mu.Lock()
	victim, ok := s.room(caller, now)
	if !ok {
		s.mu.Unlock()
		return nil
	}
	if victim != nil {
		delete(s.open, victim)
	}
	taken := &slot{slots: s, caller: caller, since: now, unread: true, abort: abort}
	s.open[taken] = struct{}{}
	s.mu.Unlock()
	if victim != nil {
		victim.abort()
	}
	return taken
}

// room returns the slot that must be given up before the caller gets one; nil if there is room. ok is false if none can
// be given up. It is called with mu held.
func (s *slots) room(caller string, now time.Time) (victim *slot, ok bool) {
	open, idle := 0, map[string]int{}
	for o := range s.open {
		if o.caller == caller {
			open++
		}
		if !o.runs {
			idle[o.caller]++
		}
	}
	of := caller
	switch {
	case open >= s.each:
	case len(s.open) < s.total:
		return nil, true
	default:
		for c, n := range idle {
			if n > idle[of] {
				of = c
			}
		}
		if of == caller {
			return nil, false
		}
	}
	for o := range s.open {
		if o.caller == of && (o.unread || of != caller && !o.runs) && (victim == nil || o.since.Before(victim.since)) {
			victim = o
		}
	}
	return victim, victim != nil && (of != caller || now.Sub(victim.since) >= slowAfter)
}

// read says that the whole request has been read. It returns false if the slot has been given up.
func (o *slot) read() bool { return o.change(func() { o.unread = false }) }

// run says that the request has its turn. It returns false if the slot has been given up.
func (o *slot) run() bool { return o.change(func() { o.runs = true }) }

func (o *slot) change(to func()) bool {
	o.slots.mu.Lock()
	defer o.slots.mu.Unlock()
	_, holds := o.slots.open[o]
	to()
	return holds
}

// release gives the slot back.
func (o *slot) release() {
	o.slots.mu.Lock()
	defer o.slots.mu.Unlock()
	delete(o.slots.open, o)
}
