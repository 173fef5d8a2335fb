package echo

import (
	"math"
	"testing"
)

func TestWeights(t *testing.T) {
	var d decks
	for _, test := range []struct {
		target string
		want   map[string]float64
	}{
		{"/?codes=503:50,200:50", map[string]float64{"503": 50, "200": 50}},
		{"/?codes=503:1,200:99", map[string]float64{"503": 1, "200": 99}},
		{"/?codes=500:1,503:1,200:1", map[string]float64{"500": 33.3, "503": 33.3, "200": 33.3}},
		{"/?codes=503:0,200:1", map[string]float64{"503": 0, "200": 100}},
		{"/?codes=503:0", map[string]float64{"503": 100}},
	} {
		b := behaviourOf(test.target, "")
		got := map[string]float64{}
		for range 1000 {
			got[b.code(&d, nil)] += 0.1
		}
		for code, want := range test.want {
			if math.Abs(got[code]-want) > 2.1 {
				t.Errorf("%s: %s for %.1f %%, want %g", test.target, code, got[code], want)
			}
		}
	}
	b := behaviourOf("/?codes=503:50,200:50", "")
	same := 0
	last := ""
	for range 1000 {
		code := b.code(&d, nil)
		if code == last {
			same++
		}
		last = code
	}
	if same < 300 || same > 700 {
		t.Errorf("the same code followed %d times of 1000", same)
	}
}

func TestTurns(t *testing.T) {
	dir := t.TempDir()
	one, two := turns{dir: dir}, turns{dir: dir}
	for i := range 4 {
		from := []*turns{&one, &two}[i%2]
		if got := from.shared("id", from.next("id")); got != i+1 {
			t.Errorf("turn %d, want %d", got, i+1)
		}
	}
	alone := turns{}
	if got := alone.shared("id", alone.next("id")); got != 1 {
		t.Errorf("turn %d, want 1", got)
	}
	b := behaviourOf("/?codes=503,500,200", "")
	for turn, want := range map[int]string{0: "503", 1: "503", 2: "500", 3: "200", 9: "200"} {
		if got := b.code(nil, func() int { return turn }); got != want {
			t.Errorf("turn %d: %s, want %s", turn, got, want)
		}
	}
}
