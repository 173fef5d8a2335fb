package serve

import "sync"

// settleTracker counts the responses that wait for an ACK or NACK, so that the next revision, and the report about this
// one, can wait for them (Settled, MostSettled). It counts those of one round, which begins with a revision: a client
// that has not answered in an earlier round holds nothing up.
type settleTracker struct {
	mu    sync.Mutex
	round uint64
	// awaited counts the responses of the round without an answer, and the revision itself while it is being applied.
	awaited int
	// answers counts the answers of all rounds.
	answers uint64
	// stragglers is the number of awaited responses at which most proxies count as settled.
	stragglers int
	// mostSettled is closed when no more than stragglers are awaited, allSettled when none are; nil if nobody waits.
	mostSettled, allSettled chan struct{}
}

// stragglerShare is the part of the streams, one in so many, that the next revision does not wait for.
const stragglerShare = 16

// beginRound is called before a revision is applied; streams is the number of open streams.
func (t *settleTracker) beginRound(streams int) (round uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round++
	t.awaited, t.stragglers = 1, streams/stragglerShare
	return t.round
}

// addResponse counts a response and returns its round, for responseAnswered.
func (t *settleTracker) addResponse() (round uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.awaited++
	return t.round
}

// responseAnswered takes a response, or the revision itself, off the count.
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

// Settled returns a channel that is closed once every response since the last revision is acknowledged or rejected; nil
// if all are.
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

// MostSettled is like Settled, but does not wait for a few stragglers. progress grows with every answer of a proxy.
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
