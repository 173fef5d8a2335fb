package serve

import "sync"

// pace counts the responses on their way, so that the next revision, and the report of this one, can wait for them. It counts those of one
// round, which begins with a revision: what a client has left unanswered in an earlier one holds nothing up again.
type pace struct {
	mu    sync.Mutex
	round uint64
	// awaited are the round's responses without an answer, and the revision itself while it is applied.
	awaited int
	// answers counts those that came, in all rounds.
	answers uint64
	// few is up to how many awaited responses most proxies have what they need.
	few int
	// most and all are closed when few, and none, are awaited; nil if nobody waits for it.
	most, all chan struct{}
}

// fewOf so many streams are stragglers, which the next revision does not wait for.
const fewOf = 16

// begin starts a round: a revision is about to be applied to so many streams.
func (p *pace) begin(streams int) (round uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.round++
	p.awaited, p.few = 1, streams/fewOf
	return p.round
}

// handed counts a response; the round it belongs to is given back with answered.
func (p *pace) handed() (round uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaited++
	return p.round
}

// answered takes a response, or the revision, off the count.
func (p *pace) answered(round uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers++
	if round != p.round {
		return
	}
	p.awaited--
	if p.most != nil && p.awaited <= p.few {
		close(p.most)
		p.most = nil
	}
	if p.all != nil && p.awaited == 0 {
		close(p.all)
		p.all = nil
	}
}

// Settled is closed once every response sent since the last revision has been acknowledged or rejected; nil if they have.
func (s *Server) Settled() <-chan struct{} {
	p := &s.pace
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.awaited == 0 {
		return nil
	}
	if p.all == nil {
		p.all = make(chan struct{})
	}
	return p.all
}

// MostSettled is Settled but for a few stragglers. progress grows with every answer of a proxy.
func (s *Server) MostSettled() (settled <-chan struct{}, progress uint64) {
	p := &s.pace
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.awaited <= p.few {
		return nil, p.answers
	}
	if p.most == nil {
		p.most = make(chan struct{})
	}
	return p.most, p.answers
}
