package fleet

import (
	"context"
	"testing"
	"time"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/testkit"
)

// TestFollow: a change, a token and time each cause a look, none of them sooner than minInterval after the one before.
func TestFollow(t *testing.T) {
	for name, cause := range map[string]func(*notify.Notifier, chan<- struct{}){
		"a change": func(changes *notify.Notifier, _ chan<- struct{}) { changes.Notify() },
		"a token":  func(_ *notify.Notifier, wake chan<- struct{}) { notify.Wake(wake) },
		"time":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			var changes notify.Notifier
			wake, looks, ended := make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
			clock := testkit.NewClock(time.Unix(1e9, 0))
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				defer close(ended)
				Follow(ctx, clock, changes.Changed, wake, func(context.Context) { looks <- struct{}{} })
			}()
			<-looks
			clock.WaitFor(t, 1)
			if cause != nil {
				cause(&changes, wake)
			}
			clock.Advance(minInterval - 1)
			select {
			case <-looks:
				t.Error("the second look comes too soon")
			default:
			}
			clock.Advance(1)
			if cause == nil {
				clock.WaitFor(t, 1)
				clock.Advance(maxInterval - minInterval)
			}
			select {
			case <-looks:
			case <-time.After(testkit.Patience):
				t.Error("there is no second look")
			}
			cancel()
			<-ended
		})
	}
}
