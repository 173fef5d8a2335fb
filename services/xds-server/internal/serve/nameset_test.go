package serve

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fairlead.dev/pkg/testkit"
)

func sortedKeys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }

func TestNameSetIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s nameSet
		model := map[string]bool{}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			name := fmt.Sprint(rapid.IntRange(0, 40).Draw(t, "name"))
			switch rapid.IntRange(0, 9).Draw(t, "do") {
			case 0, 1, 2:
				s.remove(name)
				delete(model, name)
			case 3:
				if got, want := s.sorted(), sortedKeys(model); !slices.Equal(got, want) {
					t.Fatalf("sorted %q, want %q", got, want)
				}
			default:
				if got := s.add(name); got == model[name] {
					t.Fatalf("adding %q: new is %v", name, got)
				}
				model[name] = true
			}
			if s.has(name) != model[name] || s.len() != len(model) {
				t.Fatalf("%q: %v of %d, want %v of %d", name, s.has(name), s.len(), model[name], len(model))
			}
		}
		if s.clear(); s.len() != 0 || s.has("1") {
			t.Fatal("not empty after clear")
		}
	})
}

func TestNameListIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l nameList
		model := map[string]bool{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "remove") {
				name := fmt.Sprint(rapid.IntRange(0, 60).Draw(t, "name"))
				if l.remove(name) != model[name] {
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
				l.add(sortedKeys(added))
				maps.Copy(model, added)
			}
			if got, want := l.all(), sortedKeys(model); !slices.Equal(got, want) || l.len() != len(want) {
				t.Fatalf("holds %q, want %q", got, want)
			}
		}
	})
}

func TestLongNameListsStayCorrect(t *testing.T) {
	var l nameList
	var names []string
	for i := range longList + 100 {
		names = append(names, fmt.Sprintf("%07d", i))
	}
	l.add(names)
	if l.len() != len(names) || len(l.all()) != len(names) || !l.has(names[len(names)-1]) || !l.has(names[0]) || l.has("x") {
		t.Errorf("%d names, want %d", l.len(), len(names))
	}
	for _, n := range names {
		if !l.remove(n) {
			t.Fatalf("%s is missing", n)
		}
	}
	if l.len() != 0 {
		t.Errorf("%d are left", l.len())
	}
}

func TestOnDemandMemoryIsBounded(t *testing.T) {
	clock := testkit.NewClock(time.Unix(1000, 0))
	m := newOnDemandMemory(clock)
	var many []string
	for i := range 2 * maxRememberedNames {
		many = append(many, fmt.Sprint("name-", i))
	}
	id := func(a ...any) proxyKey { return proxyKey{node: fmt.Sprint(a...)} }
	for i := range maxRememberedWorkloads + 10 {
		m.remember(id(i), "t", many[:3])
	}
	if n := len(m.workloads); n != maxRememberedWorkloads || m.names(id("0"), "t") != nil || len(m.names(id("10"), "t")) != 3 {
		t.Errorf("%d workloads", n)
	}
	for i := range maxRememberedWorkloads {
		m.remember(id("big", i), "t", many)
	}
	if m.bytes > maxRememberedBytes || len(m.names(id("big", maxRememberedWorkloads-1), "t")) != maxRememberedNames {
		t.Errorf("%d bytes", m.bytes)
	}
	m.remember(id("late"), "t", many[:1])
	clock.Advance(rememberFor + time.Second)
	before := m.bytes
	if got := m.names(id("late"), "t"); got != nil || m.bytes >= before {
		t.Errorf("remembered too long: %q", got)
	}
}
