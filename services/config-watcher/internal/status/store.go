package status

import (
	"context"
	"errors"

	"golang.org/x/time/rate"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/memory"
)

// Editor is the store of the config API; memory.Store implements it.
type Editor interface {
	Edit(ctx context.Context, k object.Key, version string, edit func(tree map[string]any) (map[string]any, error)) (memory.Result, error)
}

// StoreWriter writes statuses into the store. Each replica of config-watcher has its own store, so no leader is needed.
type StoreWriter struct {
	store Editor
	rate  *rate.Limiter
	clock clock.Clock
}

// NewStoreWriter returns a writer that makes at most perSecond writes per second, and as many at once.
func NewStoreWriter(store Editor, perSecond int, c clock.Clock) *StoreWriter {
	return &StoreWriter{store: store, rate: rate.NewLimiter(rate.Limit(perSecond), perSecond), clock: c}
}

// errUnchanged ends an edit that would change nothing.
var errUnchanged = errors.New("unchanged")

// Write implements Writer.
func (w *StoreWriter) Write(ctx context.Context, to Target, s *Status) (written bool, err error) {
	edit := func(tree map[string]any) (map[string]any, error) {
		meta, _ := tree["metadata"].(map[string]any)
		if generation, _ := meta["generation"].(int64); generation != to.Generation {
			return nil, ErrOutdated
		}
		before, _ := tree["status"].(map[string]any)
		after, changed := Merge(before, s, w.clock.Now())
		if !changed {
			return nil, errUnchanged
		}
		tree["status"] = after
		return tree, nil
	}
	// The first edit only looks, since a write that changes nothing must not use up the rate.
	_, err = w.store.Edit(ctx, to.Key, "", func(tree map[string]any) (map[string]any, error) {
		if _, err := edit(tree); err != nil {
			return nil, err
		}
		return nil, errLooked
	})
	if errors.Is(err, errLooked) {
		if err = w.rate.Wait(ctx); err == nil {
			_, err = w.store.Edit(ctx, to.Key, "", edit)
		}
	}
	switch {
	case errors.Is(err, errUnchanged):
		return false, nil
	case errors.Is(err, memory.ErrNotFound):
		return false, ErrGone
	}
	return err == nil, err
}

// errLooked ends an edit that only looks.
var errLooked = errors.New("looked")
