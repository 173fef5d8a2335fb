package catalog

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"fairlead.dev/pkg/clock"
)

const (
	// loopInterval is the least time between two readings of one thing, once a burst of two is used up; a reading of
	// bytesPerSecond or more takes a second of it for so many bytes.
	loopInterval   = 100 * time.Millisecond
	bytesPerSecond = 10_000_000
	// allPerSecond bounds the requests of a catalog.
	allPerSecond = 2000
	// Steps of waiting after failures.
	firstBackoff = time.Second
	maxBackoff   = time.Minute
)

// bucket bounds how often one thing is read.
type bucket struct{ limiter *rate.Limiter }

func newBucket() bucket { return bucket{rate.NewLimiter(rate.Every(loopInterval), 2)} }

// sized takes over the size of a reading.
func (b bucket) sized(size int64, now time.Time) {
	interval, burst := loopInterval, 2
	if of := time.Duration(float64(size) / bytesPerSecond * float64(time.Second)); of > interval {
		interval, burst = of, 1
	}
	if limit := rate.Every(interval); limit != b.limiter.Limit() {
		b.limiter.SetLimitAt(now, limit)
		b.limiter.SetBurstAt(now, burst)
	}
}

// wait waits for a token; it returns false if ctx ends before.
func wait(ctx context.Context, c clock.Clock, l *rate.Limiter) bool {
	now := c.Now()
	if d := l.ReserveN(now, 1).DelayFrom(now); d > 0 {
		return clock.Sleep(ctx, c, d)
	}
	return ctx.Err() == nil
}

// backoff is how long to wait after so many failures in a row: twice as long each time, and up to half of it less, so
// that readers that failed together come back apart.
func backoff(failures int) time.Duration {
	d := maxBackoff
	if failures < 6 {
		d = firstBackoff << max(failures-1, 0)
	}
	return d - rand.N(d/2)
}
