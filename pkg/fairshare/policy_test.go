package fairshare

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// Who makes room for whom: owners take places in the order of before, and then newcomer asks for one. A capital letter
// is a Busy place, one with ! is Fixed.
func TestPolicies(t *testing.T) {
	for _, tc := range []struct {
		name             string
		policy           Policy
		perOwner         int
		before, newcomer string
		// spared is true if no place is old enough yet.
		spared bool
		// loses is the index in before of the place that is lost; -1 if the newcomer is refused, -2 if there is room.
		loses int
	}{
		{"room", Newest, 0, "a a a", "b", false, -2},
		{"newest of most", Newest, 0, "a b a a", "b", false, 3},
		{"newest, none keeps as many", Newest, 0, "a b a b", "b", false, -1},
		{"newest, the others have one", Newest, 0, "a b c d", "e", false, -1},
		{"newest, of one who has them all", Newest, 0, "a a a a", "a", false, -1},

		{"oldest of most", Oldest, 0, "b a a a", "b", true, 1},
		{"oldest, spared from one with as many", Oldest, 0, "a b c d", "e", true, -1},
		{"oldest, not spared any more", Oldest, 0, "a b c d", "e", false, 0},
		{"oldest, beyond the newcomer's own limit", Oldest, 2, "a b b", "b", false, 1},
		{"oldest, beyond the newcomer's own limit, spared", Oldest, 2, "a b b", "b", true, -1},

		{"idle first", OldestIdle, 0, "b A A a", "b", true, 3},
		{"idle, none is", OldestIdle, 0, "b A A A", "b", true, 1},
		{"idle, the newcomer has as many as others", OldestIdle, 0, "a b a b", "b", true, 1},
		{"idle, beyond the newcomer's own limit", OldestIdle, 2, "a b b", "b", true, 1},

		{"unfixed, oldest of most", OldestUnfixed, 0, "b a A a", "b", true, 1},
		{"unfixed, busy ones too", OldestUnfixed, 0, "b A a a", "b", true, 1},
		{"unfixed, fixed ones do not count", OldestUnfixed, 0, "a! a! a! b", "c", true, 3},
		{"unfixed, fixed ones are not lost", OldestUnfixed, 0, "a! a a b", "c", true, 1},
		{"unfixed, all are fixed", OldestUnfixed, 0, "a! a! a! b!", "c", false, -1},
		{"unfixed, nobody has more", OldestUnfixed, 0, "a b a b", "b", false, -1},
		{"unfixed, own slow one", OldestUnfixed, 2, "a b b", "b", false, 1},
		{"unfixed, own slow one that is idle", OldestUnfixed, 2, "a B b", "b", false, 2},
		{"unfixed, own ones are not slow yet", OldestUnfixed, 2, "a b b", "b", true, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := testkit.NewClock(time.Unix(1000, 0))
			p := New(Config{Places: 4, PerOwner: tc.perOwner, Policy: tc.policy, Spare: time.Second, Clock: c})
			var places []*Place
			lost := -2
			for i, what := range strings.Fields(tc.before) {
				place, err := p.Take(strings.ToLower(what[:1]), 0, func() { lost = i })
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case strings.HasSuffix(what, "!"):
					place.Set(Fixed)
				case what != strings.ToLower(what):
					place.Set(Busy)
				}
				places = append(places, place)
			}
			if !tc.spared {
				c.Advance(time.Second)
			}
			before := p.Load().Held
			place, err := p.Take(tc.newcomer, 0, nil)
			if full, ok := errors.AsType[*FullError](err); ok {
				lost = -1
				if full.All != before || full.Own != strings.Count(strings.ToLower(tc.before), tc.newcomer) {
					t.Errorf("the error counts %+v", full)
				}
			} else if place.Wait(t.Context()) != nil || place.Lost() {
				t.Error("the newcomer does not hold its place")
			}
			if lost != tc.loses {
				t.Errorf("loses %d, want %d", lost, tc.loses)
			}
			if lost >= 0 && (!places[lost].Lost() || places[lost].Set(Busy) || p.Load().Held != before) {
				t.Error("a place that is lost is still held")
			}
		})
	}
}

func TestRenewedAndSparedPlaces(t *testing.T) {
	c := testkit.NewClock(time.Unix(1000, 0))
	p := New(Config{Places: 2, Policy: Oldest, Spare: time.Second, Clock: c})
	first, second := take(t, p, "a"), take(t, p, "b")
	c.Advance(time.Minute)
	first.Spare(time.Second)
	if _, err := p.Take("c", 0, nil); err == nil || first.Lost() {
		t.Error("a place that is spared again is lost")
	}
	first.Renew()
	if took := take(t, p, "c"); !second.Lost() || first.Lost() {
		t.Error("not the oldest is lost when the other has been renewed")
	} else if took.Release(); p.Load().Held != 1 {
		t.Error("a place is not given back")
	}
}

func take(t *testing.T, p *Pool, owner string) *Place {
	t.Helper()
	place, err := p.Take(owner, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return place
}

// Requests from their first byte to the answer, as the webhooks have them.
func TestRequestsAtOnceAreBounded(t *testing.T) {
	const total, each, slowAfter = 6, 3, time.Second
	type request struct {
		*Place
		aborted bool
	}
	c := testkit.NewClock(time.Unix(1000, 0))
	p := New(Config{Places: total, PerOwner: each, Policy: OldestUnfixed, Spare: slowAfter, Clock: c})
	var all []*request
	take := func(caller string) *request {
		r := &request{}
		c.Advance(time.Millisecond)
		if r.Place, _ = p.Take(caller, 0, func() { r.aborted = true }); r.Place != nil {
			all = append(all, r)
		}
		return r
	}
	for _, caller := range []string{"a", "a", "a", "b", "b"} {
		if take(caller).Place == nil {
			t.Fatalf("%s gets no place of its share", caller)
		}
	}
	if take("a").Place != nil {
		t.Error("a caller has more than its share")
	}
	c.Advance(slowAfter)
	again := take("a")
	if again.Place == nil || !all[0].aborted || all[0].Set(Busy) {
		t.Errorf("the caller's own slow request does not make room: %v, aborted %v", again.Place, all[0].aborted)
	}
	last := take("c")
	if last.Place == nil {
		t.Fatal("the last free place is not given")
	}
	if r := take("d"); r.Place == nil || !all[1].aborted {
		t.Errorf("the oldest request of the caller with most of them does not make room: %v", r.Place)
	} else if r.Release(); p.Load().Held != total-1 {
		t.Errorf("%d places are taken", p.Load().Held)
	}
	take("c")
	open := slices.DeleteFunc(slices.Clone(all), func(r *request) bool { return r.owner == nil })
	for _, o := range open {
		if !o.Set(Busy) || !o.Set(Fixed) {
			t.Error("a place is lost")
		}
	}
	if len(open) != total || take("d").Place != nil {
		t.Error("a request that is being answered makes room")
	}
	last.Release()
	if take("d").Place == nil {
		t.Error("places are not given back")
	}
}
