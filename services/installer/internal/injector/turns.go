package injector

import (
	"context"
	"fmt"
	"sync"
)

// turns bounds how many Pods are injected at once, in all and for each namespace, so that many Pods of one namespace do
// not hold those of the others up. Who must wait waits until its context ends.
type turns struct {
	all  chan struct{}
	each int

	mu sync.Mutex
	// places are of namespaces that somebody injects or waits for.
	places map[string]*place
}

// place is a namespace's.
type place struct {
	taken chan struct{}
	users int
}

// newTurns returns turns for so many Pods at once of one namespace, and four times as many of all.
func newTurns(each int) *turns {
	return &turns{all: make(chan struct{}, 4*each), each: each, places: map[string]*place{}}
}

// take waits for a turn and returns what gives it back.
func (t *turns) take(ctx context.Context, namespace string) (release func(), err error) {
	p := t.enter(namespace)
	busy := func(of string) error {
		t.leave(namespace)
		return fmt.Errorf("the injector is busy with Pods of %s: %w", of, context.Cause(ctx))
	}
	select {
	case p.taken <- struct{}{}:
	case <-ctx.Done():
		return nil, busy("namespace " + namespace)
	}
	select {
	case t.all <- struct{}{}:
	case <-ctx.Done():
		<-p.taken
		return nil, busy("all namespaces")
	}
	return func() {
		<-t.all
		<-p.taken
		t.leave(namespace)
	}, nil
}

func (t *turns) enter(namespace string) *place {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.places[namespace]
	if p == nil {
		p = &place{taken: make(chan struct{}, t.each)}
		t.places[namespace] = p
	}
	p.users++
	return p
}

func (t *turns) leave(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.places[namespace]
	if p.users--; p.users == 0 {
		delete(t.places, namespace)
	}
}
