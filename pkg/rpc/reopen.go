package rpc

import (
	"context"
	"math/rand/v2"
	"time"

	"fairlead.dev/pkg/clock"
)

// Pauses before a stream is opened anew: the first, and the longest that doubling it comes to.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 3 * time.Second
)

// Reopener opens a stream again and again. The zero value is ready to use.
type Reopener struct {
	Clock clock.Clock
	// Rand gives jitter in [0, 1); nil means math/rand.
	Rand func() float64
}

// Run calls open until ctx ends. open runs one stream to its end and reports whether anything came of it, which makes the next pause a short
// one again; ended is told why it ended and how long the pause will be, half to one and a half times the pause due.
func (r Reopener) Run(ctx context.Context, open func(context.Context) (useful bool, err error), ended func(err error, pause time.Duration)) {
	if r.Rand == nil {
		r.Rand = rand.Float64
	}
	for pause := firstPause; ; pause = min(pause*2, maxPause) {
		useful, err := open(ctx)
		if ctx.Err() != nil {
			return
		}
		if useful {
			pause = firstPause
		}
		wait := time.Duration(float64(pause) * (0.5 + r.Rand()))
		ended(err, wait)
		select {
		case <-ctx.Done():
			return
		case <-clock.Or(r.Clock).After(wait):
		}
	}
}
