package rpc

import (
	"context"
	"math/rand/v2"
	"time"

	"fairlead.dev/pkg/clock"
)

// Bounds of the back-off before a stream is opened again; it doubles from the first to the second.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 3 * time.Second
)

// Reopener keeps a stream open by opening it again with back-off. The zero value is ready to use.
type Reopener struct {
	Clock clock.Clock
	// Rand returns jitter in [0, 1); nil means math/rand.
	Rand func() float64
}

// Run calls open until ctx ends. open runs one stream to its end and reports whether it was useful, which resets the
// back-off. ended is called with the error and the pause before the next stream, half to one and a half times the
// back-off.
func (r Reopener) Run(ctx context.Context, open func(context.Context) (useful bool, err error),
	ended func(err error, pause time.Duration)) {
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
		if !clock.Sleep(ctx, clock.Or(r.Clock), wait) {
			return
		}
	}
}
