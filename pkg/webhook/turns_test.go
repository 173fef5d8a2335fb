package webhook

import (
	"context"
	"testing"
)

// taken waits in the background for a turn.
func taken(t *testing.T, of *turns, caller string, cost int64) <-chan *turn {
	t.Helper()
	waiting := func() int {
		of.mu.Lock()
		defer of.mu.Unlock()
		return len(of.waiting) + int(of.served)
	}
	before, got := waiting(), make(chan *turn, 1)
	go func() { got <- of.take(t.Context(), caller, cost) }()
	for waiting() == before && len(got) == 0 {
	}
	return got
}

func TestReviewsTakeNoMoreMemoryThanThereIs(t *testing.T) {
	of := newTurns(100, 10)
	first, second := of.take(t.Context(), "a", 50), of.take(t.Context(), "b", 50)
	third := taken(t, of, "c", 1)
	if of.inUse() != 100 || len(third) > 0 {
		t.Errorf("%d are in use, and a third review runs: %v", of.inUse(), len(third) > 0)
	}
	first.release()
	(<-third).release()
	second.release()
	if of.inUse() != 0 || len(of.callers) != 0 {
		t.Errorf("%d are in use, %d callers are remembered", of.inUse(), len(of.callers))
	}
}

func TestOneLargeReviewRunsAtATimeAndLeavesHalf(t *testing.T) {
	of := newTurns(100, 10)
	large := of.take(t.Context(), "a", 1000)
	next := taken(t, of, "a", 1000)
	small := of.take(t.Context(), "b", 50)
	if len(next) > 0 {
		t.Error("two large reviews run")
	}
	small.release()
	large.release()
	(<-next).release()
}

func TestManyReviewsOfOneCallerDoNotHoldAnothersUp(t *testing.T) {
	of := newTurns(100, 1)
	running := of.take(t.Context(), "flood", 10)
	var flood []<-chan *turn
	for range 20 {
		flood = append(flood, taken(t, of, "flood", 10))
	}
	victim := taken(t, of, "victim", 10)
	running.release()
	(<-victim).release()
	for _, w := range flood {
		(<-w).release()
	}
}

func TestWhoseTimeIsOverGivesItsPlaceUp(t *testing.T) {
	of := newTurns(100, 1)
	running := of.take(t.Context(), "a", 1)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if of.take(over, "b", 1) != nil || len(of.waiting) != 0 || len(of.callers) != 1 {
		t.Errorf("%d wait, %d callers are remembered", len(of.waiting), len(of.callers))
	}
	running.release()
}
