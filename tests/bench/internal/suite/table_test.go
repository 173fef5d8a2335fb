package suite

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		name         string
		figure, goal float64
		exact        bool
		want         verdict
	}{
		{"below", 1, 2, false, reach},
		{"equal", 2, 2, true, reach},
		{"a little above", 2.4, 2, false, near},
		{"a little above, exact", 2.4, 2, true, missed},
		{"far above", 3, 2, false, missed},
		{"nothing allowed", 1, 0, true, missed},
		{"nothing allowed, nothing there", 0, 0, true, reach},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := judge(tc.figure, tc.goal, tc.exact); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestOnlyClaimedMissesFail(t *testing.T) {
	tab := &table{out: io.Discard, claimed: map[string]bool{"a": true, "b": true}}
	tab.add(line{id: "a", verdict: near})
	tab.add(line{id: "b", verdict: missed})
	tab.add(line{id: "c", verdict: missed})
	if d := cmp.Diff([]string{"b"}, tab.misses()); d != "" {
		t.Error(d)
	}
}

func TestPageIsWrittenBetweenItsMarkers(t *testing.T) {
	beginMarker, endMarker := markers("table")
	path := filepath.Join(t.TempDir(), "page.md")
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("before\n" + beginMarker + "old\n" + endMarker + "after\n")
	for range 2 {
		if err := writePage(path, "table", "new\n"); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff("before\n"+beginMarker+"\nnew\n\n"+endMarker+"after\n", string(got)); d != "" {
		t.Error(d)
	}
	write("no markers\n")
	if err := writePage(path, "table", "new\n"); err == nil || !strings.Contains(err.Error(), "markers") &&
		!strings.Contains(err.Error(), "<!--") {
		t.Errorf("got %v", err)
	}
}

func TestPercentile(t *testing.T) {
	var d []time.Duration
	for i := range 1000 {
		d = append(d, time.Duration(1000-i))
	}
	if got := percentile(d, 0.99); got != 991 {
		t.Errorf("p99 of 1 to 1000 is %d", got)
	}
	if got := percentile(nil, 0.99); got != 0 {
		t.Errorf("of nothing: %d", got)
	}
}

// Every claim must name a line; here those that no run of the suite could print are found by their group.
func TestClaimsNameGroups(t *testing.T) {
	for _, id := range claims {
		group, _, _ := strings.Cut(id, "/")
		known := false
		for _, g := range Groups() {
			known = known || group == g || strings.HasPrefix(group, "large")
		}
		if !known {
			t.Errorf("claim %q is of no group", id)
		}
	}
}

func TestGroupsWithATableOfTheirOwnRunOnlyIfTheyAreNamed(t *testing.T) {
	for rows, want := range map[string]string{"": "", "mesh-200": "", "kube": "kube", "large,consul": "consul"} {
		o := Options{}
		if rows != "" {
			o.Rows = strings.Split(rows, ",")
		}
		for _, g := range groups {
			if g.table != "" && o.wants(g) != (g.name == want) {
				t.Errorf("-rows %q: group %s runs: %v", rows, g.name, o.wants(g))
			}
		}
	}
}

func TestBesideIstiodTheTableHasNoFloor(t *testing.T) {
	tab := &table{out: io.Discard, marker: tableKube}
	tab.add(line{what: "a row", figure: "1 ms", peer: "4 ms", ratio: "0.25", goal: "≤ 0.5 × istiod's", verdict: reach})
	if got, want := tab.markdown(), "| a row | 1 ms | 4 ms | 0.25 | ≤ 0.5 × istiod's | pass |\n"; !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want %q at its end", got, want)
	}
}
