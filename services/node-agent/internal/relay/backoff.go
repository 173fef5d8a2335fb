package relay

import (
	"math/rand/v2"
	"time"
)

const (
	// minBackoff and maxBackoff bound the longest pause before an attempt: at first half a second, since another
	// xds-server is likely to answer; it doubles while none answers.
	minBackoff = 500 * time.Millisecond
	maxBackoff = 5 * time.Second
	// lossWindow is how long after the loss of an xds-server new streams wait a back-off. Those that open in it have
	// probably been lost together with it.
	lossWindow = 10 * time.Second
)

// noteClientEnd records that a stream ended by its client's doing, so the next one needs no back-off for it.
func (r *Relay) noteClientEnd() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unanswered = 0
}

// noteServerLoss records that an xds-server ended a stream on which it had answered.
func (r *Relay) noteServerLoss() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unanswered = 0
	r.lost = r.clock.Now()
}

// noteFailedAttempt records that no xds-server answered: the attempt to connect failed, or the stream ended before the
// first message.
func (r *Relay) noteFailedAttempt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unanswered++
}

// backoff returns how long to wait before the next attempt. It is 0 if the last stream was answered and no xds-server
// was lost within lossWindow, as when a second client of the workload starts. Otherwise it is a random part of a time
// that doubles with every failed attempt, so that the proxies of a lost xds-server do not reconnect all at once.
func (r *Relay) backoff() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unanswered == 0 && (r.lost.IsZero() || r.clock.Now().Sub(r.lost) > lossWindow) {
		return 0
	}
	limit := min(minBackoff<<min(r.unanswered, 16), maxBackoff)
	return time.Duration(rand.Int64N(int64(limit)))
}
