package fairshare

import (
	"cmp"
	"slices"
	"time"
)

// owner has places that are held, or places that wait.
type owner struct {
	name string
	// places are its own, oldest first; fixed counts those that are Fixed.
	places []*Place
	fixed  int
	// turn is the number of the owner's last turn; without one, or if it had left, that of the last turn of anybody
	// before it came, or 0 with Config.NewcomersFirst. Pool.next compares it.
	turn uint64
	// held is how many places the owner of places that wait holds.
	held int
	// rank is where it is in each ranking, counted from 1; 0: nowhere.
	rank [rankings]int
}

// len is how many places it has that may be lost.
func (o *owner) len() int { return len(o.places) - o.fixed }

// oldest returns its oldest place that matches; nil if none does.
func (o *owner) oldest(match func(*Place) bool) *Place {
	if i := slices.IndexFunc(o.places, match); i >= 0 {
		return o.places[i]
	}
	return nil
}

func fixed(s State) int {
	if s == Fixed {
		return 1
	}
	return 0
}

// set holds places by owner. Owners without a place have no entry.
type set struct {
	// n is how many places there are, at most total and perOwner.
	n, total, perOwner int
	policy             Policy
	owners             map[string]*owner
	// sizes has the owner with the most places first that may be lost; of several, the one with the oldest place.
	sizes ranking
	// turns has the owner first whose place is held next; only the set of those that wait uses it.
	turns ranking
	// added counts the places that were ever added.
	added uint64
}

func newSet(total, perOwner int, policy Policy) set {
	return set{total: total, perOwner: cmp.Or(perOwner, total), policy: policy, owners: map[string]*owner{},
		sizes: ranking{which: bySize, before: func(a, b *owner) bool {
			return cmp.Or(cmp.Compare(b.len(), a.len()), cmp.Compare(a.places[0].number, b.places[0].number)) < 0
		}},
		turns: ranking{which: byTurn, before: func(a, b *owner) bool {
			return cmp.Or(cmp.Compare(a.held, b.held), cmp.Compare(a.turn, b.turn), cmp.Compare(a.places[0].number, b.places[0].number)) < 0
		}},
	}
}

// owner returns an owner, one without places if it has no entry.
func (s *set) owner(name string) *owner {
	if o := s.owners[name]; o != nil {
		return o
	}
	return &owner{name: name}
}

// count is how many places an owner has.
func (s *set) count(name string) int {
	if o := s.owners[name]; o != nil {
		return len(o.places)
	}
	return 0
}

func (s *set) add(name string, pl *Place) {
	s.added++
	o := s.owners[name]
	if o == nil {
		o = &owner{name: name}
		s.owners[name] = o
	}
	o.places = append(o.places, pl)
	o.fixed += fixed(pl.state)
	pl.owner, pl.number = o, s.added
	s.sizes.put(o)
	s.n++
}

func (s *set) remove(pl *Place) {
	o := pl.owner
	i, _ := slices.BinarySearchFunc(o.places, pl.number, func(p *Place, n uint64) int { return cmp.Compare(p.number, n) })
	if len(o.places) == 1 {
		delete(s.owners, o.name)
		s.sizes.remove(o)
		s.turns.remove(o)
	}
	o.places = slices.Delete(o.places, i, i+1)
	o.fixed -= fixed(pl.state)
	if len(o.places) > 0 {
		s.sizes.put(o)
	}
	pl.owner = nil
	s.n--
}

// room reports whether there is room for one more place of an owner, and which other place makes room for it; nil if
// none has to.
func (s *set) room(name string, now time.Time) (victim *Place, ok bool) {
	limited := s.count(name) >= s.perOwner
	switch {
	case !limited && s.n < s.total:
		return nil, true
	case s.policy == nil:
		return nil, false
	}
	newcomer := s.owner(name)
	from := newcomer
	if !limited {
		from = s.most()
	}
	victim = s.policy(from, newcomer, now)
	return victim, victim != nil
}

// most returns the owner with the most places that may be lost; of several, the one with the oldest place.
func (s *set) most() *owner {
	if len(s.sizes.owners) > 0 {
		if first := s.sizes.owners[0]; first.len() > 0 {
			return first
		}
	}
	return &owner{}
}
