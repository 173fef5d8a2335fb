package local

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/services/installer/internal/local/console"
	"fairlead.dev/services/installer/internal/local/plan"
)

// lines is a console that keeps its lines.
type lines []string

func (l *lines) Show([]console.Row) {}
func (l *lines) Line(s string)      { *l = append(*l, s) }

// TestWatchSourcesReportsFiles: files that are gone, empty or cut off are printed, then how that ends, and objects of
// kinds that no service reads.
func TestWatchSourcesReportsFiles(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	clock := testkit.NewClock(now)
	screen := &lines{}
	n := &Node{cfg: Config{Clock: clock, Console: screen, Plan: &plan.Plan{Pods: []*plan.Pod{{Workload: "web", Namespace: "default"}}}}}
	parse := func(text string) (a sourcesAnswer) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	expect := func(want ...string) {
		t.Helper()
		if !slices.Equal(*screen, want) {
			t.Errorf("told %q, want %q", *screen, want)
		}
		*screen = nil
	}
	gone := parse(`{"sources":[{"name":"file","staying":[{"file":"mesh.yaml","objects":3,"until":"2026-01-02T03:04:35Z","text":"mesh.yaml is gone: ..."}]}]}`).staying()
	empty := parse(`{"sources":[{"name":"file","staying":[{"file":"mesh.yaml","objects":3,"until":"2026-01-02T03:04:35Z","text":"mesh.yaml is empty: ..."}]}]}`).staying()
	state := n.reportStayingFiles(nil, gone)
	state = n.reportStayingFiles(state, gone)
	expect("warning: mesh.yaml is gone: ...")
	state = n.reportStayingFiles(state, empty)
	expect("warning: mesh.yaml is empty: ...")
	state = n.reportStayingFiles(state, nil)
	expect("mesh.yaml is whole again: the objects are those that it says")
	state = n.reportStayingFiles(state, gone)
	clock.Advance(30 * time.Second)
	n.reportStayingFiles(state, nil)
	expect("warning: mesh.yaml is gone: ...", "mesh.yaml did not become whole again: its 3 last objects are removed")

	const end = ": nobody reads this kind; ..."
	got := n.unread(parse(`{"sources":[{"name":"file","unread_objects":[
		"mesh.yaml:1: Deployment web: kind: apps/v1 Deployment` + end + `", "mesh.yaml:9: Deployment default/web: kind: apps/v1 Deployment` +
		end + `",
		"mesh.yaml:20: Deployment shop/web: kind: apps/v1 Deployment` + end + `", "mesh.yaml:30: HTTPRoute shop/web: kind: x/v1 HTTPRoute` + end +
		`"]}]}`))
	want := []string{"Deployment shop/web is not run", "mesh.yaml:30: HTTPRoute shop/web"}
	if len(got) != len(want) || !strings.HasPrefix(got[0], want[0]) || !strings.HasPrefix(got[1], want[1]) {
		t.Errorf("unread %q", got)
	}
}

// TestAFileWithoutAnObjectIsNotChecked: config-watcher refuses a document without content, and a directory may have
// one.
func TestAFileWithoutAnObjectIsNotChecked(t *testing.T) {
	w := newFixture(t, "")
	dir := t.TempDir()
	testkit.WriteFile(t, filepath.Join(dir, "empty.yaml"), nil)
	w.cfg.ConfigPaths = append(w.cfg.ConfigPaths, dir)
	w.start(t)
	w.ready(t, "True")
}
