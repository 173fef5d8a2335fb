package lanes_test

import (
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/lanes"
)

func TestLatest(t *testing.T) {
	type change struct {
		key   string
		state int
	}
	key := func(c change) string { return c.key }
	var l lanes.Latest[string, change]
	if l.Replace("a", change{"a", 1}) || len(l.List) > 0 {
		t.Error("an empty list has a change to replace")
	}
	l.List = []change{{"a", 1}, {"b", 1}}
	l.Merge(key, []change{{"c", 1}, {"a", 2}, {"c", 2}})
	l.Merge(key, []change{{"d", 1}, {"a", 3}})
	if want := []change{{"a", 3}, {"b", 9}, {"c", 2}, {"d", 1}}; !l.Replace("b", change{"b", 9}) || l.Replace("e", change{"e", 1}) ||
		!slices.Equal(l.List, want) {
		t.Errorf("list %v, want the newest of each key in the place of its first: %v", l.List, want)
	}
}

func TestPace(t *testing.T) {
	start := time.Unix(1000, 0)
	pace := func() *lanes.Pace {
		return &lanes.Pace{Short: 10 * time.Millisecond, Long: 50 * time.Millisecond, Min: 2, Max: 100, Cost: time.Millisecond, Memory: 3}
	}
	for name, c := range map[string]struct {
		before func(*lanes.Pace)
		spent  time.Duration
		want   int
	}{
		"endpoints rest":              {func(*lanes.Pace) {}, 0, 50},
		"endpoints have just changed": {func(p *lanes.Pace) { p.Endpoints(start) }, 0, 10},
		"endpoints changed long ago":  {func(p *lanes.Pace) { p.Endpoints(start.Add(-time.Second)) }, 0, 50},
		"endpoints took longer":       {func(p *lanes.Pace) { p.Endpoints(start) }, 20 * time.Millisecond, 20},
		"never more than Max":         {func(*lanes.Pace) {}, time.Second, 100},
		"never less than Min":         {func(p *lanes.Pace) { p.Cost = time.Second }, 0, 2},
		"without Max":                 {func(p *lanes.Pace) { p.Max = 0 }, time.Second, 1000},
		"cheaper than was assumed":    {func(p *lanes.Pace) { p.Took(10, 0) }, 0, 66},
		"a batch that had to wait":    {func(p *lanes.Pace) { p.Took(1, time.Hour) }, 0, 28},
		"a batch without changes":     {func(p *lanes.Pace) { p.Took(0, time.Hour) }, 0, 50},
	} {
		p := pace()
		if c.before(p); p.Limit(start, c.spent) != c.want {
			t.Errorf("%s: %d changes, want %d", name, p.Limit(start, c.spent), c.want)
		}
	}
}
