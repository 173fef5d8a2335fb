// Package wait is how rigs wait: for a time, for something to come true, and for several things that are done at once.
package wait

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Pause waits for a time, if there is any, or until ctx ends, which is an error.
func Pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Until calls try until it succeeds, with a rest between two calls. After within, or when ctx ends, it returns the last
// error of try.
func Until(ctx context.Context, rest, within time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		if Pause(ctx, rest) != nil {
			return fmt.Errorf("not within %s: %w", within, err)
		}
	}
}

// Each does the same to all items at once, and joins the errors.
func Each[T any](items []T, do func(T) error) error {
	failed := make([]error, len(items))
	var all sync.WaitGroup
	for i, item := range items {
		all.Go(func() { failed[i] = do(item) })
	}
	all.Wait()
	return errors.Join(failed...)
}

// Both does two things at once.
func Both(a, b func() error) error {
	return Each([]func() error{a, b}, func(f func() error) error { return f() })
}
