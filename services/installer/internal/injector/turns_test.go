package injector

import (
	"context"
	"errors"
	"testing"

	"fairlead.dev/pkg/fairshare"
)

func TestNamespacesDoNotWaitForOthers(t *testing.T) {
	const each = 2
	turns := newTurns(each)
	var releases []func()
	for range each {
		release, err := turns.take(t.Context(), "busy")
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := turns.take(over, "busy"); !errors.Is(err, context.Canceled) {
		t.Errorf("a namespace has more than its turns: %v", err)
	}
	for _, other := range []string{"second", "third", "fourth"} {
		for range each {
			release, err := turns.take(t.Context(), other)
			if err != nil {
				t.Fatalf("another namespace waits: %v", err)
			}
			releases = append(releases, release)
		}
	}
	if _, err := turns.take(over, "fifth"); !errors.Is(err, context.Canceled) {
		t.Errorf("there are more turns than in all: %v", err)
	}
	waits := make(chan error, 1)
	go func() {
		release, err := turns.take(t.Context(), "busy")
		if err == nil {
			release()
		}
		waits <- err
	}()
	for _, release := range releases {
		release()
	}
	if err := <-waits; err != nil {
		t.Error(err)
	}
	if left := turns.pool.Load(); left != (fairshare.Load{}) {
		t.Errorf("turns are taken or waited for: %+v", left)
	}
}
