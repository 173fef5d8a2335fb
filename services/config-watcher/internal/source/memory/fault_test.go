package memory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
)

// startConfig is start with a Config.
func startConfig(t testing.TB, cfg Config) *harness {
	t.Helper()
	cfg.Log = testkit.Logger(t)
	h := &harness{Store: New(cfg), t: t}
	h.Handle(func(_ context.Context, _ string, events []source.Event) { h.events = append(h.events, events...) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = h.Run(ctx) }()
	h.stop = func() { cancel(); <-done }
	t.Cleanup(h.stop)
	select {
	case <-h.Loaded():
	case <-time.After(patience):
		t.Fatalf("not loaded: %+v", h.Status())
	}
	return h
}

// tree is every file below a directory with its content, without kept damaged ones.
func tree(t testing.TB, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		fmt.Fprintf(&out, "%s %s", path, content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// faults counts the steps of a write and makes one of them fail, or also all steps after it.
type faults struct {
	count  atomic.Int64
	at     atomic.Int64 // the step that fails; 0 for none
	rest   atomic.Bool  // all after it fail too
	err    error
	failed atomic.Int64
}

func (f *faults) fs() fileio.FS {
	return fileio.FS{Fault: func(step fileio.Step, path string) error {
		n, at := f.count.Add(1), f.at.Load()
		if at > 0 && (n == at || n > at && f.rest.Load()) {
			f.failed.Add(1)
			return &fs.PathError{Op: string(step), Path: path, Err: f.err}
		}
		return nil
	}}
}

// arm makes the nth step from now fail.
func (f *faults) arm(n int64, rest bool) {
	f.failed.Store(0)
	f.rest.Store(rest)
	f.count.Store(0)
	f.at.Store(n)
}

// TestEveryStepMayFail makes each step of a write of several objects fail, alone or with all later ones. The write is
// refused, and everything is as before in memory and, after the directory can be written again, on disk. After a kill
// at that moment the write is undone or whole.
func TestEveryStepMayFail(t *testing.T) {
	for _, rest := range []bool{false, true} {
		for n := int64(1); ; n++ {
			dir := t.TempDir()
			f := &faults{err: syscall.EIO}
			clk := testkit.NewClock(time.Unix(1000, 0))
			h := startConfig(t, Config{Dir: dir, Clock: clk, FS: f.fs()})
			h.apply(ns("a", "1") + ns("b", "1"))
			before, events := tree(t, dir), len(h.events)
			f.arm(n, rest)
			_, err := h.Write(context.Background(), writes(t, ns("a", "2")+ns("b", "2")+ns("new", "2")), false)
			if f.failed.Load() == 0 {
				if err != nil {
					t.Fatalf("without a fault: %v", err)
				}
				h.stop()
				if n < 10 {
					t.Errorf("a write has only %d steps", n)
				}
				break
			}
			what := fmt.Sprintf("step %d, rest %v", n, rest)
			if !errors.Is(err, ErrNotWritable) || !errors.Is(err, syscall.EIO) {
				t.Errorf("%s: %v", what, err)
			}
			if len(h.events) != events || h.Status().Objects != 2 || h.Status().Alarm == nil || h.Refused() != 1 {
				t.Errorf("%s: events %v, status %+v", what, h.events[events:], h.Status())
			}
			// A kill now leaves all or nothing.
			killed := t.TempDir()
			if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			after := startConfig(t, Config{Dir: killed, Clock: clock.Real()})
			var values []string
			for _, name := range []string{"a", "b", "new"} {
				if it, err := after.Get(key(name)); err == nil {
					values = append(values, it.object.Labels["v"])
				}
			}
			if got := strings.Join(values, ""); got != "11" && got != "222" || len(after.Status().Problems) > 0 {
				t.Errorf("%s: after a kill %q, %v", what, got, after.Status().Problems)
			}
			after.stop()
			// The next write is refused at once, without touching the disk.
			if rest {
				if _, err := h.Write(context.Background(), writes(t, ns("other", "1")), false); !errors.Is(err, ErrNotWritable) {
					t.Errorf("%s: with the alarm on: %v", what, err)
				}
			}
			// The disk works again: the alarm ends by itself, everything is as before, and writes succeed.
			f.arm(0, false)
			clk.Advance(probeEvery)
			testkit.Eventually(t, patience, func() error {
				if err := h.Status().Alarm; err != nil {
					clk.Advance(probeEvery)
					return err
				}
				return nil
			})
			if got := tree(t, dir); got != before {
				t.Errorf("%s: files are not as before:\n%s\nwere\n%s", what, got, before)
			}
			h.apply(ns("a", "3") + ns("c", "3"))
			h.stop()
		}
	}
}

// TestLongNames: names too long for a file are different objects if only their ends differ, and the path of a shorter
// name is its own.
func TestLongNames(t *testing.T) {
	dir := t.TempDir()
	h := start(t, dir, clock.Real())
	long := strings.Repeat(strings.Repeat("a", 62)+".", 4) + "a" // 253 characters, as many as a name may have
	cm := func(name, v string) string {
		return fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: apps, labels: {v: %q}}\n", name, v)
	}
	h.apply(cm(long, "1") + cm(long[:252]+"b", "2") + cm(long[:250], "3"))
	h.stop()
	if _, err := os.Stat(filepath.Join(dir, "ConfigMap", "apps", long[:250]+".json")); err != nil {
		t.Error(err)
	}
	again := start(t, dir, clock.Real())
	if st := again.Status(); st.Objects != 3 || len(st.Problems) > 0 {
		t.Errorf("status %+v", st)
	}
	if err := again.Delete(context.Background(), object.Key{Kind: "ConfigMap", Namespace: "apps", Name: long}, ""); err != nil {
		t.Error(err)
	}
	again.apply(cm(long[:252]+"b", "4"))
	again.stop()
	if st := start(t, dir, clock.Real()).Status(); st.Objects != 2 || len(st.Problems) > 0 {
		t.Errorf("status %+v", st)
	}
}

// TestFullDisk: on a full disk writes are refused with the reason, and deletions succeed and make room; then writes
// succeed without a restart.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	clk := testkit.NewClock(time.Unix(1000, 0))
	var full atomic.Bool
	h := startConfig(t, Config{Dir: dir, Clock: clk, FS: fileio.FS{Fault: func(step fileio.Step, path string) error {
		if full.Load() && (step == fileio.StepWrite || step == fileio.StepMkdir) {
			return &fs.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
		}
		return nil
	}}})
	h.apply(ns("a", "1") + ns("b", "1"))
	full.Store(true)
	for range 3 {
		if _, err := h.Write(context.Background(), writes(t, ns("c", "1")), false); !errors.Is(err, ErrNotWritable) ||
			!errors.Is(err, syscall.ENOSPC) {
			t.Errorf("got %v", err)
		}
	}
	if st := h.Status(); st.Alarm == nil || st.Degraded != nil || !st.Synced || h.Refused() != 3 {
		t.Errorf("status %+v, refused %d", st, h.Refused())
	}
	if err := h.Delete(context.Background(), key("a"), ""); err != nil {
		t.Errorf("a deletion on a full disk: %v", err)
	}
	if h.Status().Alarm == nil {
		t.Error("the alarm ended though there is no room")
	}
	full.Store(false)
	if err := h.Delete(context.Background(), key("b"), ""); err != nil {
		t.Errorf("a deletion: %v", err)
	}
	if st := h.Status(); st.Alarm != nil {
		t.Errorf("a deletion has made room, and nobody looked: %v", st.Alarm)
	}
	h.apply(ns("c", "1"))
	// The alarm also ends without a write.
	full.Store(true)
	if _, err := h.Write(context.Background(), writes(t, ns("d", "1")), false); err == nil {
		t.Error("written on a full disk")
	}
	full.Store(false)
	testkit.Eventually(t, patience, func() error {
		clk.Advance(probeEvery)
		return h.Status().Alarm
	})
	h.stop()
	if st := start(t, dir, clock.Real()).Status(); st.Objects != 1 || len(st.Problems) > 0 {
		t.Errorf("after a restart: %+v", st)
	}
}

// TestFullFileSystem is TestFullDisk on a real full file system.
func TestFullFileSystem(t *testing.T) {
	if userns.Again(t) {
		return
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	clk := testkit.NewClock(time.Unix(1000, 0))
	h := startConfig(t, Config{Dir: filepath.Join(dir, "store"), Clock: clk})
	big := func(name string) string {
		return fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: apps}\ndata: {x: %s}\n", name,
			strings.Repeat("x", 300<<10))
	}
	written := 0
	var err error
	for ; err == nil && written < 20; written++ {
		_, err = h.Write(context.Background(), writes(t, big(fmt.Sprint("n", written))+ns(fmt.Sprint("n", written), "1")), false)
	}
	if !errors.Is(err, syscall.ENOSPC) || h.Status().Alarm == nil {
		t.Fatalf("%d written, then %v", written, err)
	}
	written-- // the last was refused
	if got := h.Status().Objects; got != 2*written {
		t.Errorf("%d objects of %d writes", got, written)
	}
	k := h.list("ConfigMap", "")[0].Key
	if err := h.Delete(context.Background(), k, ""); err != nil {
		t.Errorf("a deletion on a full disk: %v", err)
	}
	if st := h.Status(); st.Alarm != nil {
		t.Errorf("there is room again: %v", st.Alarm)
	}
	h.apply(big("again"))
	h.stop()
	if st := start(t, filepath.Join(dir, "store"), clock.Real()).Status(); st.Objects != 2*written || len(st.Problems) > 0 {
		t.Errorf("after a restart: %+v", st)
	}
}

// TestDamagedJournal: after a journal that was cut off at any length intact objects stay, those that the journal names
// are reported, and the store takes writes.
func TestDamagedJournal(t *testing.T) {
	dir := t.TempDir()
	h := start(t, dir, clock.Real())
	h.apply(ns("a", "1") + ns("b", "1"))
	h.stop()
	whole, err := encodeJournal(&transaction{put: []*file{{rel: relPath(key("a")), temp: "x"}, {rel: relPath(key("b")), temp: "y"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"", "{", string(whole[:len(whole)-3]), strings.Replace(string(whole), "a.json", "c.json", 1),
		strings.Repeat("\x00", 100)} {
		testkit.WriteFile(t, filepath.Join(dir, journalName), []byte(content))
		again := start(t, dir, clock.Real())
		st := again.Status()
		if st.Objects != 2 || len(st.Problems) != 1 || !strings.Contains(st.Problems[0].Reason, "journal of an interrupted write is damaged") {
			t.Errorf("%q: %+v", content, st)
		}
		if strings.Contains(content, "Namespace") && !strings.Contains(st.Problems.Error(), "Namespace a") &&
			!strings.Contains(st.Problems.Error(), "Namespace c") {
			t.Errorf("%q: what it concerns is not named: %v", content, st.Problems)
		}
		again.apply(ns("a", fmt.Sprint(len(content))))
		again.stop()
	}
	if kept, _ := filepath.Glob(filepath.Join(dir, journalName+".damaged-*")); len(kept) != 5 {
		t.Errorf("kept %v", kept)
	}
}

// withSaved opens a directory of last good states for a store.
func withSaved(t testing.TB, dir string) *lastgood.Dir {
	return lastgood.New(lastgood.Config{Path: dir, Log: testkit.Logger(t), Clock: clock.Real()})
}

// TestDamagedObjectIsServedFromLastGood: a file damaged in any way is served in its last good version, reported, kept,
// and replaced by the next write.
func TestDamagedObjectIsServedFromLastGood(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"cut off":    func(p string) error { return os.Truncate(p, 20) },
		"empty":      func(p string) error { return os.Truncate(p, 0) },
		"bit":        func(p string) error { return flip(p, 100) },
		"unreadable": func(p string) error { return errors.Join(os.Remove(p), os.Symlink(p, p)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, state := t.TempDir(), t.TempDir()
			saved := withSaved(t, state)
			h := startConfig(t, Config{Dir: dir, Clock: clock.Real(), Saved: saved})
			h.apply(ns("a", "1") + ns("b", "1"))
			h.apply(ns("a", "2"))
			h.stop()
			if err := saved.Flush(); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, relPath(key("a")))
			if err := harm(path); err != nil {
				t.Fatal(err)
			}
			saved = withSaved(t, state)
			h = startConfig(t, Config{Dir: dir, Clock: clock.Real(), Saved: saved})
			it, err := h.Get(key("a"))
			if err != nil || it.object.Labels["v"] != "2" || len(h.events) != 2 {
				t.Errorf("%v %v, events %v", it, err, h.events)
			}
			if st := h.Status(); !st.Synced || len(st.Problems) != 1 || !strings.Contains(st.Problems.Error(), "Namespace a") ||
				!strings.Contains(st.Problems.Error(), "last good version is served") {
				t.Errorf("status %+v", st)
			}
			if name == "unreadable" {
				return // a link that leads nowhere cannot be kept aside
			}
			h.apply(ns("a", "3"))
			if st := h.Status(); len(st.Problems) > 0 {
				t.Errorf("mended, and still %v", st.Problems)
			}
			if kept, _ := filepath.Glob(filepath.Join(dir, damagedDir, "*")); len(kept) != 1 {
				t.Errorf("kept %v", kept)
			}
			h.stop()
			if st := start(t, dir, clock.Real()).Status(); st.Objects != 2 || len(st.Problems) > 0 {
				t.Errorf("after a restart: %+v", st)
			}
		})
	}
}

// TestHarmAnywhereIsHarmToOneObject: whichever bit, sector or page of the store is lost, at most one object is, it is
// named, and all others are served.
func TestHarmAnywhereIsHarmToOneObject(t *testing.T) {
	const objects, page = 20, 4096
	whole := t.TempDir()
	h := start(t, whole, clock.Real())
	var text strings.Builder
	for i := range objects {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d, namespace: apps}\ndata: {x: %s}\n", i,
			strings.Repeat("x", i*i*20))
	}
	h.apply(text.String())
	h.stop()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's draw
	for range 40 {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("c", random.IntN(objects))
		path := filepath.Join(dir, "ConfigMap", "apps", name+".json")
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at := random.IntN(len(content))
		switch size := []int{1, 512, page}[random.IntN(3)]; size {
		case 1:
			content[at] ^= 1 << random.IntN(8)
		default:
			clear(content[at/size*size : min(at/size*size+size, len(content))])
		}
		testkit.WriteFile(t, path, content)
		again := start(t, dir, clock.Real())
		if st := again.Status(); st.Objects+len(st.Problems) != objects || len(st.Problems) > 1 ||
			len(st.Problems) == 1 && !strings.Contains(st.Problems.Error(), "ConfigMap apps/"+name+": file is damaged") {
			t.Errorf("%s harmed at %d: %+v", name, at, st)
		}
		again.stop()
	}
}

func flip(path string, at int) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	content[at] ^= 4
	return os.WriteFile(path, content, 0o600)
}

// TestDamagedSecurityObjectHoldsClosed: without a last good version its namespace is held closed, also after a restart,
// until the object is written again or deleted.
func TestDamagedSecurityObjectHoldsClosed(t *testing.T) {
	dir := t.TempDir()
	strict := "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: strict, namespace: apps}\nspec: {selector: " +
		"{matchLabels: {app: x}}, mtls: {mode: STRICT}}\n"
	h := start(t, dir, clock.Real())
	h.apply(strict)
	k := h.list("", "")[0].Key
	h.stop()
	if err := os.Truncate(filepath.Join(dir, relPath(k)), 200); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		h = start(t, dir, clock.Real())
		if len(h.events) != 1 || h.events[0].Key != k || !h.events[0].Object.Held || h.Status().Held != 1 {
			t.Fatalf("events %+v, status %+v", h.events, h.Status())
		}
		if text := h.Status().Problems.Error(); !strings.Contains(text, "holds namespace apps closed: STRICT until corrected") {
			t.Errorf("problems %s", text)
		}
		h.stop()
	}
	h = start(t, dir, clock.Real())
	if err := h.Delete(context.Background(), k, ""); err != nil || len(h.events) != 2 || h.events[1].Object != nil || h.Status().Held != 0 {
		t.Errorf("deletion: %v, events %v", err, h.events)
	}
	h.stop()
	if st := start(t, dir, clock.Real()).Status(); len(st.Problems) > 0 {
		t.Errorf("problems %v", st.Problems)
	}
}

// TestFilesOfEarlierVersions: an object without a checksum is read, and written again with one.
func TestFilesOfEarlierVersions(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, relPath(key("a")))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, path, []byte(
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"creationTimestamp":"2026-01-01T00:00:00Z","generation":3,"name":"a","resourceVersion":"12"}}`))
	h := start(t, dir, clock.Real())
	if it, err := h.Get(key("a")); err != nil || it.Version != "12" || it.Generation != 3 {
		t.Errorf("%v %v", it, err)
	}
	h.stop()
	if err := flip(path, 100); err != nil {
		t.Fatal(err)
	}
	if st := start(t, dir, clock.Real()).Status(); st.Objects != 0 || !strings.Contains(st.Problems.Error(), "checksum") {
		t.Errorf("status %+v", st)
	}
}
