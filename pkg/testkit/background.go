package testkit

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Background calls run on a goroutine. stop ends run's context, waits until run has returned, and fails the test if
// that was with an error or not within Patience; the end of the test calls it too.
func Background(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		t.Helper()
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("ended with: %v", err)
			}
		case <-time.After(Patience):
			t.Errorf("has not ended %s after it was told to", Patience)
		}
	})
	t.Cleanup(stop)
	return stop
}
