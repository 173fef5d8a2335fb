package pipeline

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
)

// slow blocks in Committed until the test releases it, so that changes gather.
type slow struct {
	entered chan uint64
	leave   chan struct{}
}

func (s slow) Committed(snapshot *revision.Snapshot, _ normalise.Delta, _, _ time.Duration) {
	s.entered <- snapshot.Sequence()
	<-s.leave
}
func (s slow) Failed(error) {}

func change(name, value string) []normalise.Change {
	k := object.Key{Kind: "Namespace", Name: name}
	return []normalise.Change{{Key: k, Object: &object.Object{Key: k, Labels: map[string]string{"v": value}}}}
}

func TestChangesGatherWhileARevisionIsBuilt(t *testing.T) {
	var settled atomic.Bool
	log := revision.NewLog("e", clock.Real())
	obs := slow{entered: make(chan uint64), leave: make(chan struct{})}
	p := New(Config{Mesh: normalise.New(normalise.Config{}), Log: testkit.Logger(t), Out: log, Clock: clock.Real(),
		Observe: obs})
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx, Ends{Settled: settled.Load}) }()
	defer func() { cancel(); <-done }()

	p.Submit(ctx, change("early", "1"))
	early, stop := context.WithTimeout(ctx, 100*time.Millisecond)
	defer stop()
	if _, err := p.Wait(early); err == nil {
		t.Error("in a revision before the sources have settled")
	}
	if snapshot, _ := log.Current(); snapshot != nil {
		t.Fatal("a revision before the sources have settled")
	}
	settled.Store(true)
	if got := <-obs.entered; got != 1 {
		t.Fatalf("first revision is %d", got)
	}
	// The first revision is not finished: everything below belongs to the second, which is a batch.
	for i := range 10 {
		p.Submit(ctx, change("busy", fmt.Sprint(i)))
	}
	p.Submit(ctx, change("last", "1"))
	obs.leave <- struct{}{}
	if got := <-obs.entered; got != 2 {
		t.Fatalf("second revision is %d", got)
	}
	waited := make(chan uint64)
	go func() {
		sequence, err := p.Wait(ctx)
		if err != nil {
			t.Error(err)
		}
		waited <- sequence
	}()
	obs.leave <- struct{}{}
	if got := <-waited; got != 2 {
		t.Errorf("changes are in revision %d", got)
	}
	snapshot, _ := log.Current()
	busy := snapshot.Get(resource.Key{Kind: "Namespace", Name: "busy"})
	if busy.GetNamespace().GetLabels()["v"] != "9" || snapshot.Get(resource.Key{Kind: "Namespace", Name: "early"}) == nil {
		t.Errorf("newest state %v", busy)
	}
	// A change without effect makes no revision, and Wait returns nevertheless.
	p.Submit(ctx, change("last", "1"))
	if sequence, err := p.Wait(ctx); err != nil || sequence != 2 {
		t.Errorf("no effect: %d %v", sequence, err)
	}
}
