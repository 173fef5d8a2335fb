package serve

import "sync"

// answerTracker counts the responses that wait for an ACK or NACK, so that the next revision, and the report about this
// one, can wait for them (AllAnswered, MostAnswered). It counts those of one round, which begins with a revision: a
// client that has not answered in an earlier round holds nothing up.
type answerTracker struct {
	mu sync.Mutex
	// all counts the responses since the last update. config counts those since the last update of configuration,
	// without those that an update of endpoints has brought since: endpoints may change all the time.
	all, config round
	// overtaken is true if there was an update of endpoints in the round of config.
	overtaken bool
}

// round counts the responses of one round.
type round struct {
	number uint64
	// awaited counts the responses of the round without an answer, and the update itself while it is being applied.
	awaited int
	// answers counts the answers of all rounds.
	answers uint64
	// answered is closed when no more than stragglers are awaited; nil if nobody waits.
	stragglers int
	answered   chan struct{}
}

// counted are the rounds in which a response is counted; 0 for none.
type counted struct{ all, config uint64 }

// stragglerShare: the next revision does not wait for one in so many streams (debounce, see package configsource).
const stragglerShare = 16

// begin begins a round.
func (r *round) begin() uint64 {
	r.number++
	r.awaited = 1
	return r.number
}

func (r *round) add() uint64 {
	r.awaited++
	return r.number
}

func (r *round) answer(number uint64) {
	if number == 0 {
		return
	}
	r.answers++
	if number != r.number {
		return
	}
	r.awaited--
	if r.answered != nil && r.awaited <= r.stragglers {
		close(r.answered)
		r.answered = nil
	}
}

// wait returns a channel that is closed when the round is answered; nil if it is.
func (r *round) wait() <-chan struct{} {
	if r.awaited <= r.stragglers {
		return nil
	}
	if r.answered == nil {
		r.answered = make(chan struct{})
	}
	return r.answered
}

// beginRound is called before configuration is applied; streams is the number of open streams.
func (t *answerTracker) beginRound(streams int) counted {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.overtaken, t.config.stragglers = false, streams/stragglerShare
	return counted{t.all.begin(), t.config.begin()}
}

// beginEndpoints is called before endpoints alone are applied.
func (t *answerTracker) beginEndpoints() counted {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.overtaken = true
	return counted{all: t.all.begin()}
}

// addResponse counts a response, of endpoints or not; the result is for responseAnswered.
func (t *answerTracker) addResponse(endpoints bool) counted {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := counted{all: t.all.add()}
	if !endpoints || !t.overtaken {
		c.config = t.config.add()
	}
	return c
}

// responseAnswered takes a response, or the update itself, off the count.
func (t *answerTracker) responseAnswered(c counted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all.answer(c.all)
	t.config.answer(c.config)
}

// AllAnswered returns a channel that is closed once every response since the last update is acknowledged or rejected;
// nil if all are.
func (s *Server) AllAnswered() <-chan struct{} {
	s.answers.mu.Lock()
	defer s.answers.mu.Unlock()
	return s.answers.all.wait()
}

// MostAnswered is like AllAnswered for the last update of configuration, but does not wait for a few stragglers.
// progress grows with every answer of a proxy to such an update.
func (s *Server) MostAnswered() (answered <-chan struct{}, progress uint64) {
	s.answers.mu.Lock()
	defer s.answers.mu.Unlock()
	return s.answers.config.wait(), s.answers.config.answers
}
