// Package quota limits how often each caller may do something, such as have a line written to a log, and counts for
// each caller what it was not allowed to do.
package quota

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxCallers bounds the callers that are remembered; those beyond share one quota. A caller is forgotten once it may do
// as much as a new one.
const maxCallers = 1000

// Callers holds the quota of each caller. It is safe for concurrent use.
type Callers struct {
	every  time.Duration
	atOnce int

	mu      sync.Mutex
	callers map[string]*quota
	beyond  *quota
}

// quota is what one caller may do, and how often it was refused since it was last allowed.
type quota struct {
	limit      *rate.Limiter
	suppressed uint64
}

// New returns quotas of atOnce times, and once more every interval.
func New(every time.Duration, atOnce int) *Callers {
	c := &Callers{every: every, atOnce: atOnce, callers: map[string]*quota{}}
	c.beyond = c.newQuota()
	return c
}

func (c *Callers) newQuota() *quota {
	return &quota{limit: rate.NewLimiter(rate.Every(c.every), c.atOnce)}
}

// Allow reports whether the caller is within its quota now, and how often it was not since Allow last returned true for
// it.
func (c *Callers) Allow(caller string, now time.Time) (suppressed uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.of(caller, now)
	if !q.limit.AllowN(now, 1) {
		q.suppressed++
		return 0, false
	}
	suppressed, q.suppressed = q.suppressed, 0
	return suppressed, true
}

// Suppress adds n to what the next successful Allow of the caller returns: the caller was allowed and it failed all the
// same.
func (c *Callers) Suppress(caller string, now time.Time, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of(caller, now).suppressed += n
}

// of returns the quota of a caller; c.mu is held.
func (c *Callers) of(caller string, now time.Time) *quota {
	if q := c.callers[caller]; q != nil {
		return q
	}
	if len(c.callers) >= maxCallers {
		for name, q := range c.callers {
			if q.limit.TokensAt(now) >= float64(c.atOnce) {
				delete(c.callers, name)
			}
		}
	}
	if len(c.callers) >= maxCallers {
		return c.beyond
	}
	q := c.newQuota()
	c.callers[caller] = q
	return q
}
