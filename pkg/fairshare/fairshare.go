// Package fairshare divides places that are scarce (connections, requests, streams, turns) between their owners: an
// address, an identity, a namespace. Anybody may use what the others leave. When there is no place left, a newcomer
// gets that of whoever has most, as the Pool's Policy says, or it waits; of those that wait, the one goes first whose
// owner has the fewest places.
package fairshare

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
)

// Unlimited is for Config.Waiting where callers bound by themselves how many places wait.
const Unlimited = math.MaxInt

// Config of a Pool. All but Places are optional.
type Config struct {
	// Places is how many there are, PerOwner how many of them one owner may have; 0 means all.
	Places, PerOwner int
	// Policy says who loses a place to a newcomer when there is none left, or when the newcomer's owner has PerOwner.
	// Without one nobody does.
	Policy Policy
	// Spare is how long a new place is spared, which Policies regard.
	Spare time.Duration
	// Budget is what the places may cost together; 0 is no limit. A place that costs more than half of it is large, and
	// counts as half: there is one of them at a time, and the other half is left for the others.
	Budget int64
	// Waiting is how many places may wait until there is room for them, WaitingPerOwner how many of one owner; 0 means
	// all. WaitingPolicy says who leaves the queue for a newcomer that finds it full.
	Waiting, WaitingPerOwner int
	WaitingPolicy            Policy
	// NewcomersFirst lets an owner that holds nothing go before those that have had a turn and still wait. Otherwise it
	// goes after all that wait already.
	NewcomersFirst bool
	// Patience is how long a place may wait; 0 is no limit. Where places are spared, one that waits looks for another
	// that is no longer spared ten times meanwhile.
	Patience time.Duration
	Clock    clock.Clock
}

var (
	// ErrDisplaced is why a place waits no longer: the queue was full and WaitingPolicy has chosen it.
	ErrDisplaced = errors.New("another owner, with fewer places in the queue, needed this one")
	// ErrPatience is why a place waits no longer: Config.Patience is over.
	ErrPatience = errors.New("no place became free in time")
)

// FullError is why there is no place, not even one to wait in.
type FullError struct {
	// All places were taken, Own of them by the owner that asked, and Most by the owner with the most. They count the
	// places in the queue if places may wait.
	All, Own, Most int
}

func (e *FullError) Error() string {
	return fmt.Sprintf("all places are taken: %d, of which the owner has %d", e.All, e.Own)
}

// Pool is a number of places. It is safe for concurrent use.
type Pool struct {
	cfg Config

	mu            sync.Mutex
	held, waiting set
	// free is what is left of the budget; large is true while a large place is held.
	free  int64
	large bool
	// turns is how many places were ever held.
	turns uint64
}

// New returns a Pool of which all places are free.
func New(cfg Config) *Pool {
	cfg.Clock = clock.Or(cfg.Clock)
	p := &Pool{cfg: cfg, held: newSet(cfg.Places, cfg.PerOwner, cfg.Policy), free: cfg.Budget,
		waiting: newSet(cfg.Waiting, cfg.WaitingPerOwner, cfg.WaitingPolicy)}
	if cfg.Budget == 0 {
		p.free = math.MaxInt64
	}
	return p
}

// Take takes a place for an owner, which costs so much of the budget. It does not block: the place may have to wait,
// and Wait says how that ends. The caller releases the place. If the place is held and lost to another owner, Take, or
// Wait, of that one calls onLoss once, which may be nil. The error is a *FullError.
func (p *Pool) Take(owner string, cost int64, onLoss func()) (*Place, error) {
	place := &Place{pool: p, cost: cost, onLoss: onLoss}
	if p.cfg.Budget > 0 && cost > p.cfg.Budget/2 {
		place.cost, place.large = p.cfg.Budget/2, true
	}
	p.mu.Lock()
	lost, err := p.take(owner, place)
	p.mu.Unlock()
	lost.tell()
	if err != nil {
		return nil, err
	}
	return place, nil
}

// take is called with mu held, as all functions below whose comment does not say otherwise.
func (p *Pool) take(name string, place *Place) (lost *Place, err error) {
	if lost, ok := p.takeNow(name, place); ok {
		return lost, nil
	}
	displaced, ok := p.waiting.room(name, time.Time{})
	if !ok {
		of := &p.held
		if p.cfg.Waiting > 0 {
			of = &p.waiting
		}
		return nil, &FullError{All: of.n, Own: of.owner(name).len(), Most: of.most().len()}
	}
	if displaced != nil {
		p.leave(displaced)
		displaced.lost = true
		close(displaced.decided)
	}
	place.decided = make(chan struct{})
	if p.waiting.add(name, place); len(place.owner.places) == 1 {
		place.owner.turn = p.turns
		if p.cfg.NewcomersFirst {
			place.owner.turn = p.held.owner(name).turn
		}
		place.owner.held = p.held.count(name)
	}
	p.waiting.turns.put(place.owner)
	p.give() // it may come before those that only lack some of the budget
	return nil, nil
}

// takeNow lets a place be held if there is room, or if another makes room, which is then lost.
func (p *Pool) takeNow(name string, place *Place) (lost *Place, ok bool) {
	now := p.cfg.Clock.Now()
	victim, ok := p.held.room(name, now)
	switch {
	case !ok:
		return nil, false
	case victim != nil:
		p.drop(victim)
		victim.lost = true
	case p.waiting.n > 0 && p.next() != nil, place.cost > p.free, place.large && p.large:
		return nil, false
	}
	p.hold(name, place, now)
	return victim, true
}

// hold takes the place out of the queue if it waits.
func (p *Pool) hold(name string, place *Place, now time.Time) {
	p.turns++
	if place.owner != nil {
		p.leave(place)
		close(place.decided)
	}
	p.held.add(name, place)
	place.owner.turn = p.turns
	if waits := p.waiting.owners[name]; waits != nil {
		waits.turn, waits.held = p.turns, len(place.owner.places)
		p.waiting.turns.put(waits)
	}
	place.held, place.since, place.spared = true, now, now.Add(p.cfg.Spare)
	p.free -= place.cost
	p.large = p.large || place.large
}

func (p *Pool) drop(place *Place) {
	name := place.owner.name
	p.held.remove(place)
	if waits := p.waiting.owners[name]; waits != nil {
		waits.held = p.held.count(name)
		p.waiting.turns.put(waits)
	}
	place.held = false
	p.free += place.cost
	if place.large {
		p.large = false
	}
}

// give gives the free places to those that wait.
func (p *Pool) give() {
	for p.waiting.n > 0 && p.held.n < p.held.total {
		next := p.next()
		// Nobody overtakes one that only lacks some of the budget: what small ones give back would go to small ones for
		// ever.
		if next == nil || next.cost > p.free {
			return
		}
		p.hold(next.owner.name, next, p.cfg.Clock.Now())
	}
}

// next returns the place that waits and is the first to be held; nil if none may be. It is one of the owner with the
// fewest places, of several such owners one whose turn was the longest ago, and of several of these the oldest.
func (p *Pool) next() *Place {
	small := func(w *Place) bool { return !w.large || !p.large }
	first := p.waiting.turns.first(func(o *owner) bool { return o.oldest(small) != nil },
		func(o *owner) bool { return o.held >= p.held.perOwner })
	if first == nil {
		return nil
	}
	return first.oldest(small)
}

// leave takes a place out of the queue.
func (p *Pool) leave(place *Place) {
	o := place.owner
	p.waiting.remove(place)
	if len(o.places) > 0 {
		p.waiting.turns.put(o)
	}
}

// Load is what is in use of a Pool.
type Load struct {
	Held, Waiting int
	// Cost is that of the places that are held.
	Cost int64
}

// Load returns what is in use now.
func (p *Pool) Load() Load {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := Load{Held: p.held.n, Waiting: p.waiting.n}
	if p.cfg.Budget > 0 {
		l.Cost = p.cfg.Budget - p.free
	}
	return l
}

// HeldBy returns how many places an owner holds now.
func (p *Pool) HeldBy(owner string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held.count(owner)
}

// Wait waits until the place is held, which it is at once unless it has to wait. Otherwise the error is ErrDisplaced,
// ErrPatience, or the cause of ctx; the place is released then.
func (pl *Place) Wait(ctx context.Context) error {
	if pl.decided == nil {
		return nil
	}
	cfg := &pl.pool.cfg
	var late, again <-chan time.Time
	if cfg.Patience > 0 {
		timer := cfg.Clock.NewTimer(cfg.Patience)
		defer timer.Stop()
		late = timer.C()
	}
	for {
		if cfg.Spare > 0 && cfg.Patience > 0 {
			again = cfg.Clock.After(cfg.Patience / 10)
		}
		var err error
		select {
		case <-pl.decided:
		case <-again:
			pl.retry()
			continue
		case <-late:
			err = ErrPatience
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		return pl.decide(ctx, err)
	}
}

// retry lets a place that waits take another's, if that is not spared any more. It is called without mu.
func (pl *Place) retry() {
	p := pl.pool
	p.mu.Lock()
	var lost *Place
	if pl.owner != nil && !pl.held {
		lost, _ = p.takeNow(pl.owner.name, pl)
	}
	p.mu.Unlock()
	lost.tell()
}

// decide returns how the waiting of a place has ended; err is the reason if it still waits. It is called without mu.
func (pl *Place) decide(ctx context.Context, err error) error {
	pl.pool.mu.Lock()
	defer pl.pool.mu.Unlock()
	switch {
	case pl.lost:
		return ErrDisplaced
	case pl.held && ctx.Err() == nil:
		return nil
	case pl.held:
		err = context.Cause(ctx)
	}
	pl.release()
	return err
}
