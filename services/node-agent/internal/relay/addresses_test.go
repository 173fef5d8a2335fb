package relay

import (
	"slices"
	"testing"
	"time"
)

func TestOrder(t *testing.T) {
	now := time.Now()
	reverse := func(n int, swap func(i, j int)) {
		for i := range n / 2 {
			swap(i, n-1-i)
		}
	}
	for _, tc := range []struct {
		name   string
		all    []string
		failed map[string]time.Time
		want   []string
	}{
		{"shuffled", []string{"a", "b", "c"}, nil, []string{"c", "b", "a"}},
		{"failed last", []string{"a", "b", "c"}, map[string]time.Time{"c": now}, []string{"b", "a", "c"}},
		{"longest ago first", []string{"a", "b", "c"}, map[string]time.Time{"a": now, "b": now.Add(-time.Second), "c": now.Add(-2 * time.Second)},
			[]string{"c", "b", "a"}},
		{"only one, failed", []string{"a"}, map[string]time.Time{"a": now}, []string{"a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := order(tc.all, tc.failed, reverse); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestCandidates(t *testing.T) {
	names := &staticResolver{}
	a := newAddresses([]string{"xds.example:15012", "127.0.0.9:15012", "127.0.0.1:15012"}, names)
	sorted := func(now time.Time) []string {
		got := a.candidates(t.Context(), now)
		slices.Sort(got)
		return got
	}
	now := time.Now()
	if got, want := sorted(now), []string{"127.0.0.1:15012", "127.0.0.9:15012", "xds.example:15012"}; !slices.Equal(got, want) {
		t.Errorf("unresolved: got %v, want %v", got, want)
	}
	names.set("127.0.0.1", "::1")
	if got, want := sorted(now), []string{"127.0.0.1:15012", "127.0.0.9:15012", "[::1]:15012"}; !slices.Equal(got, want) {
		t.Errorf("resolved: got %v, want %v", got, want)
	}
	a.markFailed("127.0.0.1:15012", now)
	for range 20 {
		if got := a.candidates(t.Context(), now); got[2] != "127.0.0.1:15012" {
			t.Errorf("failed address is not last: %v", got)
		}
	}
	first := map[string]bool{}
	for range 200 {
		first[a.candidates(t.Context(), now.Add(avoidFor))[0]] = true
	}
	if len(first) != 3 {
		t.Errorf("after %s every address comes first now and then: got %v", avoidFor, first)
	}
}
