package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/validate"
)

const patience = testkit.Patience

type harness struct {
	*Store
	t      testing.TB
	events []source.Event
	stop   func()
}

func start(t testing.TB, dir string, c clock.Clock) *harness {
	t.Helper()
	return startConfig(t, Config{Dir: dir, Clock: c})
}

func writes(t testing.TB, yaml string) []Write {
	t.Helper()
	docs, problems := manifest.Parse("", []byte(yaml))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	var out []Write
	for _, d := range docs {
		o, err := validate.Document(d)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, Write{Doc: d, Object: o, Verb: Apply, KeepAbsentStatus: true})
	}
	return out
}

func (h *harness) apply(yaml string) []Result {
	h.t.Helper()
	r, err := h.Write(context.Background(), writes(h.t, yaml), false)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

func ns(name, value string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {v: %q}}\n", name, value)
}

func key(name string) object.Key { return object.Key{Kind: "Namespace", Name: name} }

func TestSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	clk := testkit.NewClock(time.Unix(1000, 0))
	first := start(t, dir, clk)
	first.apply(ns("a", "1") + ns("b", "1") + ns("c", "1"))
	first.apply(ns("a", "2"))
	if err := first.Delete(context.Background(), key("b"), ""); err != nil {
		t.Fatal(err)
	}
	a, err := first.Get(key("a"))
	if err != nil {
		t.Fatal(err)
	}
	// Versions must not repeat even if the clock goes back.
	second := start(t, dir, testkit.NewClock(time.Unix(10, 0)))
	got, err := second.Get(key("a"))
	if err != nil || got.Version != a.Version || string(got.Manifest) != string(a.Manifest) || got.Generation != a.Generation {
		t.Errorf("after a kill: %v %v", got, err)
	}
	if _, err := second.Get(key("b")); !errors.Is(err, ErrNotFound) {
		t.Errorf("a deleted object is back: %v", err)
	}
	if len(second.events) != 2 {
		t.Errorf("delivered %d objects", len(second.events))
	}
	if v := second.apply(ns("a", "3"))[0].Item.Version; v <= a.Version {
		t.Errorf("version %s after %s", v, a.Version)
	}
	if info, err := os.Stat(filepath.Join(dir, "Namespace", "_cluster", "a.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file: %v %v", info, err)
	}
}

// TestInterruptedWrite: a write of two objects that was killed after its journal was complete and one file was written
// is finished at the next start.
func TestInterruptedWrite(t *testing.T) {
	dir := t.TempDir()
	h := start(t, dir, clock.Real())
	h.apply(ns("a", "1") + ns("b", "1"))
	h.stop()
	var items []*Item
	for _, w := range writes(t, ns("a", "2")+ns("b", "2")) {
		r, err := h.prepare(w, h.version+1)
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, r.Item)
	}
	interrupted, err := h.begin(items, nil)
	if err != nil {
		t.Fatal(err)
	}
	content, err := encodeJournal(interrupted)
	if err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, filepath.Join(dir, journalName), content)
	first := interrupted.put[0]
	if err := os.Rename(filepath.Join(dir, first.temp), filepath.Join(dir, first.rel)); err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, filepath.Join(dir, "Namespace", "_cluster", ".write-123"), []byte("half"))
	again := start(t, dir, clock.Real())
	for _, name := range []string{"a", "b"} {
		if it, err := again.Get(key(name)); err != nil || it.object.Labels["v"] != "2" {
			t.Errorf("%s: %v %v", name, it, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*", "*", ".write-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := os.Stat(filepath.Join(dir, journalName)); !os.IsNotExist(err) {
		t.Errorf("the journal stays: %v", err)
	}
}

func TestDamagedFileIsLeftOut(t *testing.T) {
	dir := t.TempDir()
	h := start(t, dir, clock.Real())
	h.apply(ns("a", "1") + ns("b", "1"))
	h.stop()
	path := filepath.Join(dir, "Namespace", "_cluster", "a.json")
	testkit.WriteFile(t, path, []byte(`{"apiVersion":"v1","ki`))
	again := start(t, dir, clock.Real())
	st := again.Status()
	if !st.Synced || st.Objects != 1 || len(st.Problems) != 1 || st.Problems[0].Location != path {
		t.Errorf("status %+v", st)
	}
}

func TestAllOrNothing(t *testing.T) {
	h := start(t, t.TempDir(), clock.Real())
	h.apply(ns("a", "1"))
	stale := strings.Replace(ns("a", "2"), "name: a,", `name: a, resourceVersion: "7",`, 1)
	if _, err := h.Write(context.Background(), writes(t, ns("b", "1")+stale), false); !errors.Is(err, ErrStale) {
		t.Errorf("got %v", err)
	}
	if _, err := h.Get(key("b")); !errors.Is(err, ErrNotFound) {
		t.Errorf("half of a refused write is there: %v", err)
	}
	if r, err := h.Write(context.Background(), writes(t, ns("b", "1")), true); err != nil || !r[0].Created {
		t.Errorf("dry run: %v %v", r, err)
	}
	if _, err := h.Get(key("b")); !errors.Is(err, ErrNotFound) {
		t.Errorf("a dry run wrote: %v", err)
	}
}

func TestOlderObjectsWithinASecondAreOrdered(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := testkit.NewClock(now)
	h := start(t, t.TempDir(), c)
	h.apply(ns("b", "1"))
	c.Advance(time.Millisecond)
	h.apply(ns("a", "1"))
	older, younger := h.events[0].Object.Created, h.events[1].Object.Created
	if !older.Before(younger) {
		t.Errorf("written at %v, then at %v", older, younger)
	}
}

func TestUnwritableDirectoryChangesNothing(t *testing.T) {
	dir := t.TempDir()
	h := start(t, dir, clock.Real())
	h.apply(ns("a", "1"))
	// A file in place of a directory: permissions would not stop tests that run as root.
	testkit.WriteFile(t, filepath.Join(dir, "ConfigMap"), []byte("in the way"))
	cm := "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: other}\n"
	if _, err := h.Write(context.Background(), writes(t, cm), false); !errors.Is(err, ErrNotWritable) {
		t.Errorf("got %v", err)
	}
	if len(h.events) != 1 || h.Status().Objects != 1 {
		t.Errorf("events %v, status %+v", h.events, h.Status())
	}
	if _, err := h.Write(context.Background(), writes(t, ns("c", "1")+cm), false); !errors.Is(err, ErrNotWritable) {
		t.Errorf("got %v", err)
	}
	h.stop()
	if err := os.Remove(filepath.Join(dir, "ConfigMap")); err != nil {
		t.Fatal(err)
	}
	if st := start(t, dir, clock.Real()).Status(); st.Objects != 1 {
		t.Errorf("a refused write came back after a restart: %+v", st)
	}
}

func TestGenerations(t *testing.T) {
	h := start(t, "", clock.Real())
	pod := func(sa, ip string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: apps}\nspec: {serviceAccountName: %s, containers: "+
			"[]}\nstatus: {podIP: %s}\n", sa, ip)
	}
	for i, c := range []struct {
		yaml       string
		generation int64
		changed    bool
	}{
		{pod("a", "10.0.0.1"), 1, true}, {pod("a", "10.0.0.1"), 1, false}, {pod("a", "10.0.0.2"), 1, true}, {pod("b", "10.0.0.2"), 2, true},
		{strings.Split(pod("b", ""), "status")[0], 2, false},
	} {
		r := h.apply(c.yaml)[0]
		if r.Item.Generation != c.generation || r.Changed != c.changed {
			t.Errorf("%d: generation %d, changed %v", i, r.Item.Generation, r.Changed)
		}
	}
}

func TestWatch(t *testing.T) {
	h := start(t, "", clock.Real())
	h.apply(ns("a", "1"))
	items, w, err := h.Watch("Namespace", "")
	if err != nil || len(items) != 1 {
		t.Fatalf("%v %v", items, err)
	}
	h.apply(ns("a", "2") + ns("b", "1") + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: other}\n")
	if err := h.Delete(context.Background(), key("a"), ""); err != nil {
		t.Fatal(err)
	}
	<-w.Ready()
	events, err := w.Take()
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprint(e.Type, e.Item.Key.Name, e.Item.object.Labels["v"]))
	}
	if err != nil || strings.Join(got, " ") != "1a2 0b1 2a2" {
		t.Errorf("%v %v", got, err)
	}
	for i := range maxQueue + 1 {
		w.push(Event{Type: Added, Item: &Item{Version: fmt.Sprint(i)}})
	}
	if _, err := w.Take(); !errors.Is(err, ErrSlow) {
		t.Errorf("overflow: %v", err)
	}
}

func FuzzRelPath(f *testing.F) {
	f.Add("a/../../b", "..", "c")
	f.Fuzz(func(t *testing.T, kind, namespace, name string) {
		p := relPath(object.Key{Kind: kind, Namespace: namespace, Name: name, Group: "g"})
		if !filepath.IsLocal(p) {
			t.Errorf("%q leads out of the directory", p)
		}
	})
}
