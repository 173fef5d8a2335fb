package fairshare

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// world checks a Pool against what each place was told.
type world struct {
	*testing.T
	p       *Pool
	clock   *testkit.Clock
	held    []*Place
	waiting []*Place
	// losses counts calls of onLoss.
	losses map[*Place]int
}

// Whatever happens, limits hold, nobody who has less than an equal share loses a place, and nothing is counted after
// all places have been released.
func TestInvariants(t *testing.T) {
	for name, cfg := range map[string]Config{
		"connections": {Places: 12, PerOwner: 5, Policy: Oldest, Spare: 5 * time.Second, Waiting: 8, WaitingPerOwner: 3},
		"http":        {Places: 12, PerOwner: 6, Policy: OldestIdle},
		"requests":    {Places: 12, PerOwner: 6, Policy: OldestUnfixed, Spare: time.Second},
		"streams":     {Places: 12, Policy: Newest},
		"turns":       {Places: 4, Budget: 100, Waiting: Unlimited},
		"namespaces":  {Places: 8, PerOwner: 2, Waiting: Unlimited},
		"queue":       {Places: 3, Waiting: 9, WaitingPolicy: Newest},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(30) {
				cfg.Clock = testkit.NewClock(time.Unix(1000, 0))
				w := &world{T: t, p: New(cfg), clock: cfg.Clock.(*testkit.Clock), losses: map[*Place]int{}}
				w.run(rand.New(rand.NewPCG(seed, 1)))
			}
		})
	}
}

func (w *world) run(r *rand.Rand) {
	owners := 2 + r.IntN(6)
	for range 400 {
		switch n := r.IntN(10); {
		case n < 6:
			w.take(fmt.Sprint(r.IntN(1+r.IntN(owners))), r.Int64N(80))
		case n < 8 && len(w.held) > 0:
			w.held[r.IntN(len(w.held))].Release()
		case n < 9 && len(w.held) > 0:
			place := w.held[r.IntN(len(w.held))]
			place.Set(State(r.IntN(3)))
			if r.IntN(2) == 0 {
				place.Renew()
			}
		case len(w.waiting) > 0:
			w.waiting[r.IntN(len(w.waiting))].Release()
		}
		w.clock.Advance(time.Duration(r.IntN(2000)) * time.Millisecond)
		w.check()
	}
	for _, place := range slices.Concat(w.held, w.waiting) {
		place.Release()
		place.Release()
	}
	w.settle()
	for _, place := range slices.Concat(w.held, w.waiting) {
		place.Release()
	}
	if l := w.p.Load(); l != (Load{}) || len(w.p.held.owners)+len(w.p.waiting.owners) != 0 {
		w.Fatalf("after all: %+v of %d and %d owners", l, len(w.p.held.owners), len(w.p.waiting.owners))
	}
}

// take asks for a place, and checks who has lost one for it.
func (w *world) take(owner string, cost int64) {
	p := w.p
	type numbers struct{ held, unfixed, waiting int }
	before := map[string]numbers{}
	for name, o := range p.held.owners {
		before[name] = numbers{len(o.places), o.len(), 0}
	}
	for name, o := range p.waiting.owners {
		n := before[name]
		n.waiting = len(o.places)
		before[name] = n
	}
	whose := map[*Place]string{}
	for _, place := range slices.Concat(w.held, w.waiting) {
		whose[place] = place.owner.name
	}
	if p.cfg.Budget == 0 {
		cost = 0
	}
	var place *Place
	place, err := p.Take(owner, cost, func() { w.losses[place]++ })
	own := before[owner]
	for other, name := range whose {
		if !other.lost {
			continue
		}
		has, newcomer, everybody := before[name].unfixed, own.unfixed, 0
		if other.decided != nil && !other.held && slices.Contains(w.waiting, other) {
			has, newcomer = before[name].waiting, own.waiting
			for _, n := range before {
				everybody = max(everybody, n.waiting)
			}
		} else {
			for _, n := range before {
				everybody = max(everybody, n.unfixed)
			}
		}
		if err != nil {
			w.Fatalf("%s has lost a place for a newcomer that got none: %v", name, err)
		}
		if name != owner && (has < everybody || has < newcomer || has == 0) {
			w.Fatalf("%s with %d loses a place to %s with %d, while another has %d", name, has, owner, newcomer, everybody)
		}
		if other.state == Fixed {
			w.Fatalf("%s loses a fixed place", name)
		}
	}
	if err == nil {
		w.waiting = append(w.waiting, place)
	}
	w.settle()
}

// settle sorts places by what they are now.
func (w *world) settle() {
	all := slices.Concat(w.held, w.waiting)
	w.held, w.waiting = nil, nil
	for _, place := range all {
		switch {
		case place.held:
			w.held = append(w.held, place)
		case place.owner != nil:
			w.waiting = append(w.waiting, place)
		case place.lost && place.decided == nil && w.losses[place] != 1:
			w.Fatalf("onLoss was called %d times", w.losses[place])
		}
	}
}

func (w *world) check() {
	w.Helper()
	w.checkRankings()
	w.settle()
	p := w.p
	var cost int64
	held, large := map[string]int{}, 0
	for _, place := range w.held {
		cost += place.cost
		held[place.owner.name]++
		if place.large {
			large++
		}
	}
	l := p.Load()
	switch {
	case l.Held != len(w.held) || l.Waiting != len(w.waiting) || l.Cost != cost:
		w.Fatalf("%+v, want %d held, %d waiting, cost %d", l, len(w.held), len(w.waiting), cost)
	case l.Held > p.cfg.Places || l.Waiting > p.cfg.Waiting || p.cfg.Budget > 0 && cost > p.cfg.Budget || large > 1:
		w.Fatalf("beyond the limits: %+v, %d large", l, large)
	}
	for name, n := range held {
		if n > p.held.perOwner {
			w.Fatalf("%s holds %d", name, n)
		}
	}
	// Nobody waits who could be held, but for the budget.
	if l.Held < p.cfg.Places {
		if next := p.next(); next != nil && next.cost <= p.free {
			w.Fatalf("%s waits for nothing", next.owner.name)
		}
	}
	for _, place := range w.held {
		if err := place.Wait(context.Background()); err != nil {
			w.Fatal(err)
		}
	}
}

func BenchmarkTake(b *testing.B) {
	for name, cfg := range map[string]Config{
		"free":      {Places: 1 << 20},
		"displaces": {Places: 1000, Policy: Newest},
		"waits":     {Places: 1, Waiting: Unlimited},
	} {
		b.Run(name, func(b *testing.B) {
			p := New(cfg)
			owners := make([]string, 64)
			for i := range owners {
				owners[i] = fmt.Sprint("10.0.0.", i)
			}
			if name == "displaces" {
				for range cfg.Places {
					_, _ = p.Take("most", 0, nil)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if place, err := p.Take(owners[i%64], 0, nil); err == nil {
					place.Release()
				}
			}
		})
	}
}

// The rankings find the owners that a search through all finds.
func (w *world) checkRankings() {
	w.Helper()
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	small := func(w *Place) bool { return !w.large || !p.large }
	var next *owner
	fewest := 0
	for name, o := range p.waiting.owners {
		held := p.held.count(name)
		if held != o.held {
			w.Fatalf("%s is said to hold %d, and holds %d", name, o.held, held)
		}
		if held < p.held.perOwner && o.oldest(small) != nil && (next == nil || cmp.Or(cmp.Compare(held, fewest),
			cmp.Compare(o.turn, next.turn), cmp.Compare(o.places[0].number, next.places[0].number)) < 0) {
			next, fewest = o, held
		}
	}
	if got := p.next(); next == nil && got != nil || next != nil && got != next.oldest(small) {
		w.Fatalf("next is %v, want that of %v", got, next)
	}
	for _, s := range []*set{&p.held, &p.waiting} {
		most := &owner{}
		for _, o := range s.owners {
			if o.len() > most.len() || o.len() == most.len() && o.len() > 0 && o.places[0].number < most.places[0].number {
				most = o
			}
		}
		if got := s.most(); got.name != most.name {
			w.Fatalf("the owner with most is %q, want %q", got.name, most.name)
		}
	}
}

// A place of one of thousands of owners that wait costs little.
func BenchmarkManyWait(b *testing.B) {
	const owners = 4000
	p := New(Config{Places: 200, PerOwner: 50, Policy: Oldest, Spare: time.Minute, Waiting: owners})
	var held []*Place
	take := func(n int) {
		place, err := p.Take(fmt.Sprint(n), 0, nil)
		if err != nil {
			b.Fatal(err)
		}
		held = append(held, place)
	}
	for n := range owners {
		take(n)
	}
	for n := 0; b.Loop(); n++ {
		held[n].Release()
		take(owners + n)
	}
}
