package fleet

import (
	"context"
	"time"

	"fairlead.dev/pkg/clock"
)

// minInterval is the least time between two looks of Follow, maxInterval the most: the proxies of other replicas come
// without a notice.
const (
	minInterval = 100 * time.Millisecond
	maxInterval = time.Second
)

// Follow calls look at once, and again when changed tells of a change or wake has a token, until ctx ends.
func Follow(ctx context.Context, c clock.Clock, changed func() <-chan struct{}, wake <-chan struct{}, look func(context.Context)) {
	for ctx.Err() == nil {
		reported := changed()
		look(ctx)
		if !clock.Sleep(ctx, c, minInterval) {
			return
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-reported:
		case <-c.After(maxInterval - minInterval):
		}
	}
}
