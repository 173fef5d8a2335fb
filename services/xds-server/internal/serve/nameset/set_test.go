package nameset

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func sortedKeys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }

func TestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Set
		model := map[string]bool{}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			name := fmt.Sprint(rapid.IntRange(0, 40).Draw(t, "name"))
			switch rapid.IntRange(0, 9).Draw(t, "do") {
			case 0, 1, 2:
				s.Remove(name)
				delete(model, name)
			case 3:
				if got, want := s.Sorted(), sortedKeys(model); !slices.Equal(got, want) {
					t.Fatalf("sorted %q, want %q", got, want)
				}
			default:
				if got := s.Add(name); got == model[name] {
					t.Fatalf("adding %q: new is %v", name, got)
				}
				model[name] = true
			}
			if s.Has(name) != model[name] || s.Len() != len(model) {
				t.Fatalf("%q: %v of %d, want %v of %d", name, s.Has(name), s.Len(), model[name], len(model))
			}
		}
		if s.Clear(); s.Len() != 0 || s.Has("1") {
			t.Fatal("not empty after clear")
		}
	})
}

func TestList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l List
		model := map[string]bool{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "remove") {
				name := fmt.Sprint(rapid.IntRange(0, 60).Draw(t, "name"))
				if l.Remove(name) != model[name] {
					t.Fatalf("removing %q", name)
				}
				delete(model, name)
			} else {
				added := map[string]bool{}
				for range rapid.IntRange(0, 8).Draw(t, "many") {
					if name := fmt.Sprint(rapid.IntRange(0, 60).Draw(t, "name")); !model[name] {
						added[name] = true
					}
				}
				l.Add(sortedKeys(added))
				maps.Copy(model, added)
			}
			if got, want := l.Names(), sortedKeys(model); !slices.Equal(got, want) || l.Len() != len(want) {
				t.Fatalf("holds %q, want %q", got, want)
			}
		}
	})
}

func TestLongList(t *testing.T) {
	var l List
	var names []string
	for i := range longList + 100 {
		names = append(names, fmt.Sprintf("%07d", i))
	}
	l.Add(names)
	if l.Len() != len(names) || len(l.Names()) != len(names) || !l.Has(names[len(names)-1]) || !l.Has(names[0]) || l.Has("x") {
		t.Errorf("%d names, want %d", l.Len(), len(names))
	}
	for _, n := range names {
		if !l.Remove(n) {
			t.Fatalf("%s is missing", n)
		}
	}
	if l.Len() != 0 {
		t.Errorf("%d are left", l.Len())
	}
}
