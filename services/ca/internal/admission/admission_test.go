package admission

import (
	"context"
	"fmt"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/refusal"
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

// enter starts a request and returns where its outcome will be.
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

func wantReason(t *testing.T, err error, want refusal.Reason) {
	t.Helper()
	if refused, ok := refusal.From(err); !ok || refused.Kind != refusal.Overloaded || refused.Reason != want {
		t.Errorf("got %v, want a refusal because of %s", err, want)
	}
}

func TestWaitersGetThePlaceThatIsLeft(t *testing.T) {
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
	if working, waiting := g.Load(); working != 0 || waiting != 0 || len(g.caller) != 0 {
		t.Errorf("%d working, %d waiting and %v remembered when all have left", working, waiting, g.caller)
	}
}

func TestQueueHasAnEnd(t *testing.T) {
	g, clock := newGate(t, 1, 2)
	must(t, g, "a")
	first, second := enter(t.Context(), g, "b"), enter(t.Context(), g, "c")
	clock.WaitFor(t, 2)
	_, err := g.Enter(t.Context(), "d")
	wantReason(t, err, refusal.Overload)
	// Those who wait are refused at the deadline, all of them.
	clock.Advance(time.Second)
	wantReason(t, (<-first).err, refusal.Overload)
	wantReason(t, (<-second).err, refusal.Overload)
	if working, waiting := g.Load(); working != 1 || waiting != 0 {
		t.Errorf("%d working and %d waiting, want 1 and 0", working, waiting)
	}
}

func TestOneCallerGetsHalf(t *testing.T) {
	g, clock := newGate(t, 1, 3)
	leave := must(t, g, "greedy")
	waiting := enter(t.Context(), g, "greedy")
	clock.WaitFor(t, 1)
	_, err := g.Enter(t.Context(), "greedy")
	wantReason(t, err, refusal.CallerLimit)
	modest := enter(t.Context(), g, "modest")
	clock.WaitFor(t, 2)
	leave()
	(<-waiting).leave()
	if got := <-modest; got.err != nil {
		t.Error(got.err)
	}
}

func TestCallerGivesUp(t *testing.T) {
	g, clock := newGate(t, 1, 1)
	must(t, g, "a")
	ctx, cancel := context.WithCancel(t.Context())
	waiting := enter(ctx, g, "b")
	clock.WaitFor(t, 1)
	cancel()
	wantReason(t, (<-waiting).err, refusal.CallerWentAway)
	if clock.Waiters() != 0 {
		t.Error("the timer of a caller who gave up is still running")
	}
}

func TestRetryAfterSpreads(t *testing.T) {
	g, _ := newGate(t, 1, 1)
	for fraction, want := range map[float64]time.Duration{0: time.Second, 0.5: 1500 * time.Millisecond, 1: 2 * time.Second} {
		if got := g.RetryAfter(fraction); got != want {
			t.Errorf("retry after %s for %v, want %s", got, fraction, want)
		}
	}
}

func TestConfigRefused(t *testing.T) {
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
