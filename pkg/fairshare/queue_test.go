package fairshare

import (
	"context"
	"errors"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// ask takes a place that may have to wait.
func ask(t *testing.T, p *Pool, owner string, cost int64) *Place {
	t.Helper()
	place, err := p.Take(owner, cost, nil)
	if err != nil {
		t.Fatal(err)
	}
	return place
}

func (pl *Place) isHeld() bool {
	pl.pool.mu.Lock()
	defer pl.pool.mu.Unlock()
	return pl.held
}

func reviews(atOnce int) *Pool { return New(Config{Places: atOnce, Budget: 100, Waiting: Unlimited}) }

func TestPlacesCostNoMoreThanTheBudget(t *testing.T) {
	p := reviews(10)
	first, second := ask(t, p, "a", 50), ask(t, p, "b", 50)
	third := ask(t, p, "c", 1)
	if l := p.Load(); l.Cost != 100 || l.Waiting != 1 || third.isHeld() {
		t.Errorf("%+v are in use, and a third place is held: %v", l, third.isHeld())
	}
	first.Release()
	if err := third.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	for _, place := range []*Place{third, second, second, first} {
		place.Release()
	}
	if p.Load() != (Load{}) || len(p.held.owners)+len(p.waiting.owners) != 0 {
		t.Errorf("%+v are in use, %d owners are remembered", p.Load(), len(p.held.owners)+len(p.waiting.owners))
	}
}

func TestOneLargePlaceAtATimeLeavesHalf(t *testing.T) {
	p := reviews(10)
	large, next := ask(t, p, "a", 1000), ask(t, p, "a", 1000)
	small := ask(t, p, "b", 50)
	if !small.isHeld() || next.isHeld() {
		t.Errorf("small %v, second large %v", small.isHeld(), next.isHeld())
	}
	small.Release()
	if next.isHeld() {
		t.Error("two large places are held")
	}
	large.Release()
	if err := next.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// Small ones do not overtake one that only lacks some of the budget. One that is large while another is large lacks
// more.
func TestNobodyOvertakesWhatOnlyLacksBudget(t *testing.T) {
	p := reviews(10)
	running, large, small := ask(t, p, "a", 60), ask(t, p, "b", 60), ask(t, p, "b", 1)
	if !running.isHeld() || large.isHeld() || !small.isHeld() {
		t.Error("a small place waits for a large one that cannot be held yet")
	}
	p = reviews(10)
	ask(t, p, "a", 40)
	ask(t, p, "a", 40)
	lacks := ask(t, p, "b", 30)
	later := ask(t, p, "c", 10)
	if lacks.isHeld() || later.isHeld() {
		t.Error("a later place has overtaken one that only lacks budget")
	}
	lacks.Release() // it gives up
	if !later.isHeld() {
		t.Error("the next one does not go on when the one before it gives up")
	}
}

func TestManyOfOneOwnerDoNotHoldAnotherUp(t *testing.T) {
	p := reviews(1)
	running := ask(t, p, "flood", 10)
	var flood []*Place
	for range 20 {
		flood = append(flood, ask(t, p, "flood", 10))
	}
	victim := ask(t, p, "victim", 10)
	running.Release()
	flood[0].Release()
	if !victim.isHeld() {
		t.Error("the victim is not served after one of the flood")
	}
	victim.Release()
	for _, w := range flood[1:] {
		if err := w.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		w.Release()
	}
}

// However many newcomers there are, one who waits is served after those that came before.
func TestNewcomersDoNotStarveWhoWaits(t *testing.T) {
	p := reviews(1)
	running := ask(t, p, "first", 1)
	waits, again := ask(t, p, "waits", 1), ask(t, p, "waits", 1)
	for round := range 5 {
		newcomer := ask(t, p, string(rune('A'+round)), 1)
		running.Release()
		running = newcomer
		switch round {
		case 0:
			if !waits.isHeld() {
				t.Fatal("a newcomer has overtaken")
			}
			waits.Release()
		case 1:
			if !again.isHeld() {
				t.Fatal("a newcomer has overtaken the second turn")
			}
			again.Release()
		}
	}
}

// A newcomer goes before owners that have had their turns and wait for more, also when these hold nothing.
func TestNewcomersFirst(t *testing.T) {
	for _, first := range []bool{true, false} {
		p := New(Config{Places: 2, Waiting: Unlimited, NewcomersFirst: first})
		running := []*Place{ask(t, p, "a", 0), ask(t, p, "b", 0)}
		again := ask(t, p, "a", 0)
		newcomer := ask(t, p, "c", 0)
		running[0].Release()
		if newcomer.isHeld() != first || again.isHeld() == first {
			t.Errorf("newcomers first %v: the newcomer's %v, the other's %v", first, newcomer.isHeld(), again.isHeld())
		}
	}
}

func TestWhoseTimeIsOverGivesItsPlaceUp(t *testing.T) {
	p := reviews(1)
	running := ask(t, p, "a", 1)
	over, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone"))
	if err := ask(t, p, "b", 1).Wait(over); err == nil || err.Error() != "gone" || p.Load().Waiting != 0 {
		t.Errorf("%v, %d wait", err, p.Load().Waiting)
	}
	late := ask(t, p, "b", 1)
	running.Release()
	if err := late.Wait(over); err == nil || p.Load() != (Load{}) {
		t.Errorf("%v; a place that came too late is not given back: %+v", err, p.Load())
	}
}

func TestPatienceEnds(t *testing.T) {
	c := testkit.NewClock(time.Unix(1000, 0))
	p := New(Config{Places: 1, Waiting: 1, Patience: time.Second, Clock: c})
	ask(t, p, "a", 0)
	waits := ask(t, p, "b", 0)
	if _, err := p.Take("c", 0, nil); err == nil {
		t.Error("more wait than may")
	}
	out := make(chan error)
	go func() { out <- waits.Wait(t.Context()) }()
	c.WaitFor(t, 1)
	c.Advance(time.Second)
	if err := <-out; !errors.Is(err, ErrPatience) || p.Load().Waiting != 0 {
		t.Errorf("%v, %d wait", err, p.Load().Waiting)
	}
}

// One that waits gets another's place when that is not spared any more.
func TestWaitingTakesWhatIsSparedNoLonger(t *testing.T) {
	c := testkit.NewClock(time.Unix(1000, 0))
	p := New(Config{Places: 1, Policy: Oldest, Spare: 2 * time.Second, Waiting: 2, Patience: 5 * time.Second, Clock: c})
	lost := make(chan struct{})
	if _, err := p.Take("a", 0, func() { close(lost) }); err != nil {
		t.Fatal(err)
	}
	waits := ask(t, p, "b", 0)
	out := make(chan error)
	go func() { out <- waits.Wait(t.Context()) }()
	for range 4 {
		c.WaitFor(t, 2)
		c.Advance(500 * time.Millisecond)
	}
	<-lost
	if err := <-out; err != nil || !waits.isHeld() || p.Load().Waiting != 0 {
		t.Errorf("%v, held %v, %d wait", err, waits.isHeld(), p.Load().Waiting)
	}
}
