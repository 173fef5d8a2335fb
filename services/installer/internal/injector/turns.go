package injector

import (
	"context"
	"fmt"

	"fairlead.dev/pkg/fairshare"
)

// turns bounds how many Pods are injected at once, in all and for each namespace, so that many Pods of one namespace do
// not hold those of the others up.
type turns struct {
	pool *fairshare.Pool
	each int
}

// newTurns returns turns for so many Pods at once of one namespace, and four times as many of all.
func newTurns(each int) turns {
	return turns{fairshare.New(fairshare.Config{Places: 4 * each, PerOwner: each, Waiting: fairshare.Unlimited}), each}
}

// take waits for a turn until ctx ends, and returns what gives it back.
func (t turns) take(ctx context.Context, namespace string) (release func(), err error) {
	place, err := t.pool.Take(namespace, 0, nil)
	if err == nil {
		err = place.Wait(ctx)
	}
	if err != nil {
		of := "all namespaces"
		if t.pool.HeldBy(namespace) >= t.each {
			of = "namespace " + namespace
		}
		return nil, fmt.Errorf("the injector is busy with Pods of %s: %w", of, err)
	}
	return place.Release, nil
}
