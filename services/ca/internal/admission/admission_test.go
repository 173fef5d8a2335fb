package admission

import (
	"context"
	"fmt"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/rejection"
)

func newGate(t *testing.T, workers, queue int) (*Gate, *testkit.Clock) {
	t.Helper()
	clock := testkit.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	g, err := New(Config{Workers: workers, Queue: queue, Wait: time.Second, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	return g, clock
}

type entered struct {
	leave func()
	err   error
}

// enter starts a request and returns a channel that receives its outcome.
func enter(ctx context.Context, g *Gate, caller string) <-chan entered {
	out := make(chan entered, 1)
	go func() {
		leave, err := g.Enter(ctx, caller)
		out <- entered{leave, err}
	}()
	return out
}

func must(t *testing.T, g *Gate, caller string) (leave func()) {
	t.Helper()
	leave, err := g.Enter(t.Context(), caller)
	if err != nil {
		t.Fatal(err)
	}
	return leave
}

func wantReason(t *testing.T, err error, want rejection.Reason) {
	t.Helper()
	if rejected, ok := rejection.From(err); !ok || rejected.Kind != rejection.Overloaded || rejected.Reason != want {
		t.Errorf("got %v, want a rejection because of %s", err, want)
	}
}

func TestWaitingRequestGetsTheFreedWorker(t *testing.T) {
	g, clock := newGate(t, 1, 2)
	leave := must(t, g, "a")
	waiting := enter(t.Context(), g, "b")
	clock.WaitFor(t, 1)
	if working, waiting := g.Load(); working != 1 || waiting != 1 {
		t.Errorf("%d working and %d waiting, want 1 and 1", working, waiting)
	}
	leave()
	got := <-waiting
	if got.err != nil {
		t.Fatal(got.err)
	}
	got.leave()
	if working, waiting := g.Load(); working != 0 || waiting != 0 {
		t.Errorf("%d working, %d waiting when all have left", working, waiting)
	}
}

func TestFullQueueRejects(t *testing.T) {
	g, clock := newGate(t, 1, 2)
	must(t, g, "a")
	first, second := enter(t.Context(), g, "b"), enter(t.Context(), g, "c")
	clock.WaitFor(t, 2)
	_, err := g.Enter(t.Context(), "d")
	wantReason(t, err, rejection.Overload)
	// All that wait are rejected at the deadline.
	clock.Advance(time.Second)
	wantReason(t, (<-first).err, rejection.Overload)
	wantReason(t, (<-second).err, rejection.Overload)
	if working, waiting := g.Load(); working != 1 || waiting != 0 {
		t.Errorf("%d working and %d waiting, want 1 and 0", working, waiting)
	}
}

// One caller alone may fill the queue. Another displaces its last requests until both have the same number; then
// requests of either are rejected.
func TestFullQueueIsSharedEvenly(t *testing.T) {
	g, clock := newGate(t, 1, 4)
	leave := must(t, g, "greedy")
	var greedy, modest []<-chan entered
	for i := range 4 {
		greedy = append(greedy, enter(t.Context(), g, "greedy"))
		clock.WaitFor(t, i+1)
	}
	_, err := g.Enter(t.Context(), "greedy")
	wantReason(t, err, rejection.CallerLimit)
	for i := range 2 {
		modest = append(modest, enter(t.Context(), g, "modest"))
		wantReason(t, (<-greedy[3-i]).err, rejection.CallerLimit)
		clock.WaitFor(t, 4)
	}
	_, err = g.Enter(t.Context(), "modest")
	wantReason(t, err, rejection.CallerLimit)
	// A third caller gets a place as well.
	third := enter(t.Context(), g, "third")
	wantReason(t, (<-greedy[1]).err, rejection.CallerLimit)
	clock.WaitFor(t, 4)
	_, err = g.Enter(t.Context(), "third")
	wantReason(t, err, rejection.Overload)
	leave()
	for _, waiting := range []<-chan entered{greedy[0], modest[0], third, modest[1]} {
		got := <-waiting
		if got.err != nil {
			t.Fatal(got.err)
		}
		got.leave()
	}
}

// A single request is next in turn, however many requests another caller has.
func TestCallersTakeTurns(t *testing.T) {
	g, clock := newGate(t, 1, 16)
	leave := must(t, g, "other")
	order := make(chan string, 16)
	waiting := 0
	for _, caller := range []string{"a", "a", "a", "a", "b", "b", "c"} {
		outcome := enter(t.Context(), g, caller)
		waiting++
		clock.WaitFor(t, waiting)
		go func() {
			got := <-outcome
			if got.err != nil {
				order <- got.err.Error()
				return
			}
			order <- caller
			got.leave()
		}()
	}
	leave()
	got := ""
	for range waiting {
		got += <-order
	}
	if want := "abcabaa"; got != want {
		t.Errorf("admitted in the order %s, want %s", got, want)
	}
}

// A request may get a worker at the moment when it gives up; the worker is then freed.
func TestWorkerOfARequestThatGivesUpIsFreed(t *testing.T) {
	g, clock := newGate(t, 2, 8)
	for range 200 {
		leave, also := must(t, g, "a"), must(t, g, "a")
		ctx, cancel := context.WithCancel(t.Context())
		waiting := []<-chan entered{enter(ctx, g, "b"), enter(ctx, g, "c"), enter(ctx, g, "b")}
		clock.WaitFor(t, 3)
		go cancel()
		leave()
		also()
		for _, outcome := range waiting {
			if got := <-outcome; got.err == nil {
				got.leave()
			}
		}
		if working, waiting := g.Load(); working != 0 || waiting != 0 {
			t.Fatalf("%d working, %d waiting when all have left", working, waiting)
		}
	}
}

func TestRequestThatGivesUpLeavesTheQueue(t *testing.T) {
	g, clock := newGate(t, 1, 1)
	must(t, g, "a")
	ctx, cancel := context.WithCancel(t.Context())
	waiting := enter(ctx, g, "b")
	clock.WaitFor(t, 1)
	cancel()
	wantReason(t, (<-waiting).err, rejection.CallerWentAway)
	if clock.Waiters() != 0 {
		t.Error("the timer of a caller who gave up is still running")
	}
}

func TestRetryAfterIsOneToTwoWaits(t *testing.T) {
	g, _ := newGate(t, 1, 1)
	for fraction, want := range map[float64]time.Duration{0: time.Second, 0.5: 1500 * time.Millisecond, 1: 2 * time.Second} {
		if got := g.RetryAfter(fraction); got != want {
			t.Errorf("retry after %s for %v, want %s", got, fraction, want)
		}
	}
}

func TestNewRejectsConfig(t *testing.T) {
	for _, cfg := range []Config{{Queue: 1, Wait: 1}, {Workers: 1, Wait: 1}, {Workers: 1, Queue: 1}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("accepted %+v", cfg)
		}
	}
}

func BenchmarkEnter(b *testing.B) {
	clock := testkit.NewClock(time.Time{})
	g, err := New(Config{Workers: 8, Queue: 64, Wait: time.Second, Clock: clock})
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		leave, err := g.Enter(b.Context(), fmt.Sprint(i%4))
		if err != nil {
			b.Fatal(err)
		}
		leave()
	}
}
