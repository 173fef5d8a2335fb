package serve

import "sync"

// pace counts the responses on their way, so that the next revision, and the report of this one, can wait for them. It counts those of one
// round, which begins with a revision: what a client has left unanswered in an earlier one holds nothing up again.
type settleTracker struct {
	mu    sync.Mutex
	round uint64
	// awaited are the round's responses without an answer, and the revision itself while it is applied.
	awaited int
	// answers counts those that came, in all rounds.
	answers uint64
	// few is up to how many awaited responses most proxies have what they need.
	stragglers int
	// most and all are closed when few, and none, are awaited; nil if nobody waits for it.
	mostSettled, allSettled chan struct{}
}

// fewOf so many streams are stragglers, which the next revision does not wait for.
const stragglerShare = 16

// begin starts a round: a revision is about to be applied to so many streams.
func (t *settleTracker) beginRound(streams int) (round uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round++
	t.awaited, t.stragglers = 1, streams/stragglerShare
	return t.round
}

// handed counts a response; the round it belongs to is given back with answered.
func (t *settleTracker) addResponse() (round uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.awaited++
	return t.round
}

// answered takes a response, or the revision, off the count.
func (t *settleTracker) responseAnswered(round uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers++
	if round != t.round {
		return
	}
	t.awaited--
	if t.mostSettled != nil && t.awaited <= t.stragglers {
		close(t.mostSettled)
		t.mostSettled = nil
	}
	if t.allSettled != nil && t.awaited == 0 {
		close(t.allSettled)
		t.allSettled = nil
	}
}

// Settled is closed once every response sent since the last revision has been acknowledged or rejected; nil if they have.
func (s *Server) Settled() <-chan struct{} {
	t := &s.settling
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.awaited == 0 {
		return nil
	}
	if t.allSettled == nil {
		t.allSettled = make(chan struct{})
	}
	return t.allSettled
}

// MostSettled is Settled but for a few stragglers. progress grows with every answer of a proxy.
func (s *Server) MostSettled() (settled <-chan struct{}, progress uint64) {
	t := &s.settling
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.awaited <= t.stragglers {
		return nil, t.answers
	}
	if t.mostSettled == nil {
		t.mostSettled = make(chan struct{})
	}
	return t.mostSettled, t.answers
}
