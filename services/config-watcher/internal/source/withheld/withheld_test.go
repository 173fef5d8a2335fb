package withheld

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func keys(from, to int) (out []int) {
	for k := from; k < to; k++ {
		out = append(out, k)
	}
	return out
}

func TestReadings(t *testing.T) {
	// A step is a reading of 100 objects, or of those that the steps before have left.
	type step struct {
		after    time.Duration
		missing  []int
		doubtful bool
		removed  int
		held     int
	}
	for name, steps := range map[string][]step{
		"half":                  {{missing: keys(0, 50), removed: 50}},
		"more than half":        {{missing: keys(0, 51), held: 51}},
		"all, twice":            {{missing: keys(0, 100), held: 100}, {after: Wait, missing: keys(0, 100), removed: 100}},
		"all, twice, too early": {{missing: keys(0, 100), held: 100}, {after: Wait - 1, missing: keys(0, 100), held: 100}},
		"one in between does not matter": {{missing: keys(0, 60), held: 60}, {after: Wait / 2, missing: keys(0, 60), held: 60},
			{after: Wait / 2, missing: keys(0, 60), removed: 60}},
		"some are back":                         {{missing: keys(0, 60), held: 60}, {after: Wait, missing: keys(0, 30), removed: 30}},
		"so many are back that the rest is few": {{missing: keys(0, 60), held: 60}, {after: 1, missing: keys(0, 30), removed: 30}},
		"a few more":                            {{missing: keys(0, 60), held: 60}, {after: Wait, missing: keys(0, 65), removed: 65}},
		"many more wait anew": {{missing: keys(0, 60), held: 60}, {after: Wait, missing: keys(0, 90), removed: 60, held: 30},
			{after: Wait, missing: keys(60, 90), removed: 30}},
		"more of them wait together": {{missing: keys(0, 60), held: 60}, {after: 1, missing: keys(0, 61), held: 61},
			{after: Wait - 1, missing: keys(0, 61), removed: 61}},
		"doubtful": {{missing: keys(0, 1), doubtful: true, held: 1},
			{after: Wait, missing: keys(0, 1), doubtful: true, removed: 1}},
		"back and gone again waits anew": {{missing: keys(0, 60), held: 60}, {after: Wait / 2},
			{after: Wait / 2, missing: keys(0, 60), held: 60}},
	} {
		t.Run(name, func(t *testing.T) {
			var g Guard[int]
			now, inForce := start, 100
			for i, s := range steps {
				now = now.Add(s.after)
				removed := g.Reading(Reading[int]{At: now, InForce: inForce, Missing: s.missing, Doubtful: s.doubtful})
				inForce -= len(removed)
				if n, _ := g.Held(); len(removed) != s.removed || n != s.held {
					t.Errorf("reading %d removes %d and withholds %d, want %d and %d", i, len(removed), n, s.removed, s.held)
				}
			}
		})
	}
	t.Run("few", func(t *testing.T) {
		var g Guard[int]
		if removed := g.Reading(Reading[int]{At: start, InForce: 10, Missing: keys(0, 10)}); len(removed) != 10 {
			t.Errorf("removes %v", removed)
		}
	})
}

func TestEventsAndAccept(t *testing.T) {
	var g Guard[int]
	if n, since := g.Held(); n != 0 || !since.IsZero() || !g.Due().IsZero() || g.Accept() != nil {
		t.Error("the zero Guard withholds something")
	}
	g.Reading(Reading[int]{At: start, InForce: 12, Missing: keys(0, 12)})
	g.Forget(3)
	n, since := g.Held()
	if n != 11 || since != start || g.Due() != start.Add(Wait) || g.Has(3) || !g.Has(4) {
		t.Errorf("%d since %s, due %s, %v", n, since, g.Due(), g.held)
	}
	accepted := g.Accept()
	slices.Sort(accepted)
	if n, _ := g.Held(); n != 0 || !slices.Equal(accepted, []int{0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11}) {
		t.Errorf("accepts %v, %d are left", accepted, n)
	}
}

// TestRandomReadings compares a Guard with a list of all readings, from which each verdict follows anew.
func TestRandomReadings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 30
		var g Guard[int]
		inForce := map[int]bool{}
		// absent are the times of the readings in a row that lacked an object, since it was last seen or written.
		absent := map[int][]time.Time{}
		now := start
		put := func(k int) { inForce[k] = true; delete(absent, k) }
		for _, k := range keys(0, size) {
			put(k)
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			switch rapid.SampledFrom([]string{"reading", "reading", "reading", "write", "delete", "accept"}).Draw(t, "step") {
			case "write":
				k := rapid.IntRange(0, size-1).Draw(t, "object")
				put(k)
				g.Forget(k)
			case "delete":
				k := rapid.IntRange(0, size-1).Draw(t, "object")
				delete(inForce, k)
				delete(absent, k)
				g.Forget(k)
			case "accept":
				for _, k := range g.Accept() {
					if len(absent[k]) == 0 {
						t.Fatalf("accepts the removal of %d, which no reading lacked", k)
					}
					delete(inForce, k)
					delete(absent, k)
				}
				if len(absent) > 0 {
					t.Fatalf("missing and neither withheld nor removed: %v", absent)
				}
			default:
				here := rapid.SliceOfNDistinct(rapid.IntRange(0, size-1), 0, size, rapid.ID[int]).Draw(t, "here")
				var missing []int
				for _, k := range keys(0, size) {
					switch {
					case slices.Contains(here, k):
						put(k)
					case inForce[k]:
						missing = append(missing, k)
						absent[k] = append(absent[k], now)
					}
				}
				doubtful := rapid.IntRange(0, 9).Draw(t, "doubt") == 0
				confirmed := func(k int) bool { return now.Sub(absent[k][0]) >= Wait }
				waiting := 0
				for _, k := range missing {
					if !confirmed(k) {
						waiting++
					}
				}
				left := len(inForce) - (len(missing) - waiting)
				many := waiting > Few && float64(waiting) > float64(left)/2
				var want []int
				for _, k := range missing {
					if confirmed(k) || !many && !doubtful {
						want = append(want, k)
					}
				}
				got := g.Reading(Reading[int]{At: now, InForce: len(inForce), Missing: missing, Doubtful: doubtful})
				if !slices.Equal(got, want) {
					t.Fatalf("removes %v, want %v", got, want)
				}
				for _, k := range got {
					delete(inForce, k)
					delete(absent, k)
				}
			}
			count, since := g.Held()
			first := time.Time{}
			for k, at := range absent {
				if !g.Has(k) {
					t.Fatal(fmt.Errorf("%d is missing and in force, but not withheld", k))
				}
				if first.IsZero() || at[0].Before(first) {
					first = at[0]
				}
			}
			if count != len(absent) || since != first {
				t.Fatalf("%d since %s are withheld, want %d since %s", count, since, len(absent), first)
			}
		}
	})
}
