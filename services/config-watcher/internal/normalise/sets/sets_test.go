package sets

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// TestMultimap makes random changes and compares the result with maps of maps, for sets shorter and longer than maxFew.
func TestMultimap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	got, want := Multimap[int, int]{}, map[int]map[int]struct{}{}
	for step := range 20_000 {
		k, v := random.IntN(4), random.IntN(3*maxFew)
		// The probability of removing changes, so that sets grow and shrink all the way.
		if random.IntN(100) < 20+60*(step/1000%2) {
			got.Remove(k, v)
			delete(want[k], v)
			if len(want[k]) == 0 {
				delete(want, k)
			}
		} else {
			got.Add(k, v)
			if want[k] == nil {
				want[k] = map[int]struct{}{}
			}
			want[k][v] = struct{}{}
		}
		if len(got) != len(want) {
			t.Fatalf("step %d: %d keys, want %d", step, len(got), len(want))
		}
		members := map[int]struct{}{}
		for m := range got[k].All {
			members[m] = struct{}{}
		}
		if !maps.Equal(members, want[k]) || got[k].Len() != len(want[k]) {
			t.Fatalf("step %d: %v of length %d, want %v", step, members, got[k].Len(), want[k])
		}
		for range got[k].All {
			break
		}
	}
}
