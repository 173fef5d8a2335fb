package issuance

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A caller who is refused again and again fills nobody's disk. Certificates issued are not limited: each is a line.
const (
	// refusedLinesPerSecond and refusedLinesAtOnce are each caller's. A person sees what is wrong from the first; the
	// counters count every refusal.
	refusedLinesPerSecond = 1
	refusedLinesAtOnce    = 20
	// maxLineCallers bounds the callers that are remembered; those beyond share one quota. A caller is forgotten once
	// it may write as many lines as a new one.
	maxLineCallers = 1000
)

// lines limits the audit lines of refused requests, for each caller. It is safe for concurrent use.
type lines struct {
	mu      sync.Mutex
	callers map[string]*quota
	beyond  *quota
}

// quota is what one caller may write, and how many lines it has not written since its last.
type quota struct {
	limit   *rate.Limiter
	skipped int
}

func newLines() *lines { return &lines{callers: map[string]*quota{}, beyond: newQuota()} }

func newQuota() *quota {
	return &quota{limit: rate.NewLimiter(refusedLinesPerSecond, refusedLinesAtOnce)}
}

// allow tells whether the caller may write a line now, and how many it was not allowed to since its last one.
func (l *lines) allow(caller string, now time.Time) (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.of(caller, now)
	if !q.limit.AllowN(now, 1) {
		q.skipped++
		return 0, false
	}
	skipped, q.skipped = q.skipped, 0
	return skipped, true
}

func (l *lines) of(caller string, now time.Time) *quota {
	if q := l.callers[caller]; q != nil {
		return q
	}
	if len(l.callers) >= maxLineCallers {
		for name, q := range l.callers {
			if q.limit.TokensAt(now) >= refusedLinesAtOnce {
				delete(l.callers, name)
			}
		}
	}
	if len(l.callers) >= maxLineCallers {
		return l.beyond
	}
	q := newQuota()
	l.callers[caller] = q
	return q
}
