package audit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A caller who is refused again and again pushes neither another's refusals out of the kept files, nor silences them.
const (
	// refusedAtOnce lines are each caller's, and one more every refusedEvery. A person sees what is wrong from the
	// first; at this rate one caller needs half a day to fill a file of refusals.
	refusedAtOnce = 20
	refusedEvery  = time.Minute
	// maxRefusedCallers bounds the callers that are remembered; those beyond share one quota. A caller is forgotten
	// once it may write as many lines as a new one.
	maxRefusedCallers = 1000
)

// quotas limits the lines of refusals, for each caller. It is safe for concurrent use.
type quotas struct {
	mu      sync.Mutex
	callers map[string]*quota
	beyond  *quota
}

// quota is what one caller may write, and how many lines it has not written since its last.
type quota struct {
	limit      *rate.Limiter
	suppressed uint64
}

func newQuotas() *quotas { return &quotas{callers: map[string]*quota{}, beyond: newQuota()} }

func newQuota() *quota {
	return &quota{limit: rate.NewLimiter(rate.Every(refusedEvery), refusedAtOnce)}
}

// allow tells whether the caller may write a line now, and how many it was not allowed to since its last one.
func (q *quotas) allow(caller string, now time.Time) (suppressed uint64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.of(caller, now)
	if !c.limit.AllowN(now, 1) {
		c.suppressed++
		return 0, false
	}
	suppressed, c.suppressed = c.suppressed, 0
	return suppressed, true
}

// unwritten counts refusals whose line could not be written, for the caller's next line.
func (q *quotas) unwritten(caller string, now time.Time, n uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of(caller, now).suppressed += n
}

func (q *quotas) of(caller string, now time.Time) *quota {
	if c := q.callers[caller]; c != nil {
		return c
	}
	if len(q.callers) >= maxRefusedCallers {
		for name, c := range q.callers {
			if c.limit.TokensAt(now) >= refusedAtOnce {
				delete(q.callers, name)
			}
		}
	}
	if len(q.callers) >= maxRefusedCallers {
		return q.beyond
	}
	c := newQuota()
	q.callers[caller] = c
	return c
}
