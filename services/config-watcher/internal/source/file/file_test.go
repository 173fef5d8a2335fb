package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

const patience = testkit.Patience

// view follows a source by its events.
type view struct {
	t   *testing.T
	src *Source
	// stop ends the source; it may be called again.
	stop func()

	mu      sync.Mutex
	objects map[object.Key]*object.Object
	batches int
}

func run(t *testing.T, resync time.Duration, paths ...string) *view {
	t.Helper()
	return runConfig(t, Config{Paths: paths, Resync: resync})
}

func runConfig(t *testing.T, cfg Config) *view {
	t.Helper()
	cfg.Name, cfg.Log, cfg.Clock = "file", testkit.Logger(t), clock.Or(cfg.Clock)
	if cfg.Grace == 0 {
		cfg.Grace = 500 * time.Millisecond
	}
	v := &view{t: t, objects: map[object.Key]*object.Object{}}
	v.src = New(cfg)
	v.src.Handle(func(_ context.Context, _ string, events []source.Event) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.batches++
		for _, e := range events {
			if e.Object == nil {
				if v.objects[e.Key] == nil {
					t.Errorf("%s removed though absent", e.Key)
				}
				delete(v.objects, e.Key)
			} else {
				v.objects[e.Key] = e.Object
			}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := v.src.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	v.stop = func() { cancel(); <-done }
	t.Cleanup(v.stop)
	return v
}

// names lists "name=value of label v", sorted.
func (v *view) names() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []string
	for k, o := range v.objects {
		out = append(out, k.Name+"="+o.Labels["v"])
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (v *view) wait(want string) {
	v.t.Helper()
	testkit.Eventually(v.t, patience, func() error {
		if got := v.names(); got != want {
			return fmt.Errorf("have %q, want %q", got, want)
		}
		return nil
	})
}

func (v *view) waitProblem(want string) {
	v.t.Helper()
	testkit.Eventually(v.t, patience, func() error {
		if got := v.src.Status().Problems.Error(); !strings.Contains(got, want) || want == "" && got != "" {
			return fmt.Errorf("problems %q, want %q", got, want)
		}
		return nil
	})
}

func ns(name, value string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {v: %q}}\n", name, value)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFollowsDirectory(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "sub", "b.json")
	testkit.WriteFile(t, a, []byte(ns("a", "1")+ns("a2", "1")))
	v := run(t, time.Hour, dir)
	v.wait("a2=1 a=1")
	if !v.src.HasSynced() {
		t.Error("delivered but not synced")
	}
	t.Run("a new file in a new directory is read", func(t *testing.T) {
		if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, b, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"b"}}`)
		v.wait("a2=1 a=1 b=")
	})
	t.Run("a file written in place is read", func(t *testing.T) {
		write(t, a, ns("a", "2")+ns("a2", "1"))
		v.wait("a2=1 a=2 b=")
	})
	t.Run("a file replaced by renaming is read", func(t *testing.T) {
		testkit.WriteFile(t, a, []byte(ns("a", "3")))
		v.wait("a=3 b=")
	})
	t.Run("objects of a removed file are removed", func(t *testing.T) {
		if err := os.Remove(b); err != nil {
			t.Fatal(err)
		}
		v.wait("a=3")
	})
	t.Run("hidden files and other names are skipped", func(t *testing.T) {
		write(t, filepath.Join(dir, ".a.yaml"), ns("hidden", ""))
		write(t, filepath.Join(dir, "a.yaml~"), ns("backup", ""))
		write(t, filepath.Join(dir, "z.yml"), ns("z", ""))
		v.wait("a=3 z=")
	})
}

func TestBrokenObjectsKeepTheirLastGoodVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, path, ns("a", "1")+ns("b", "1"))
	v := run(t, time.Hour, path)
	v.wait("a=1 b=1")
	testkit.WriteFile(t, path, []byte(ns("a", "2")+strings.Replace(ns("b", "2"), "labels", "lables", 1)))
	v.wait("a=2 b=1")
	v.waitProblem(`mesh.yaml:8: Namespace b: metadata.lables: unknown field "lables"; did you mean "labels"?`)
	testkit.WriteFile(t, path, []byte(ns("a", "3")+"---\n{\n"))
	v.wait("a=3 b=1")
	v.waitProblem("mesh.yaml:6: not valid YAML")
	testkit.WriteFile(t, path, []byte(ns("a", "4")))
	v.wait("a=4")
	v.waitProblem("")
	t.Run("a file emptied while it is written keeps its objects", func(t *testing.T) {
		write(t, path, "")
		write(t, path, ns("a", "5"))
		v.wait("a=5")
	})
	t.Run("a file removed and written again keeps its objects", func(t *testing.T) {
		v.mu.Lock()
		before := v.batches
		v.mu.Unlock()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		write(t, path, ns("a", "6"))
		v.wait("a=6")
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.batches != before+1 {
			t.Errorf("objects went and came back: %d batches", v.batches-before)
		}
	})
	t.Run("objects of a file removed for good are removed", func(t *testing.T) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		v.wait("")
	})
}

// TestConfigMapVolume: the source follows the ..data link, which the test switches as the kubelet does.
func TestConfigMapVolume(t *testing.T) {
	dir := t.TempDir()
	version := func(name, content string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "mesh.yaml"), content)
		tmp := filepath.Join(dir, "..data_tmp")
		if err := os.Symlink(name, tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..v1", ns("a", "1"))
	if err := os.Symlink(filepath.Join("..data", "mesh.yaml"), filepath.Join(dir, "mesh.yaml")); err != nil {
		t.Fatal(err)
	}
	v := run(t, time.Hour, dir)
	v.wait("a=1")
	version("..v2", ns("a", "2"))
	if err := os.RemoveAll(filepath.Join(dir, "..v1")); err != nil {
		t.Fatal(err)
	}
	v.wait("a=2")
}

func TestFirstFileOfAnObjectIsInForce(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), ns("x", "first"))
	write(t, filepath.Join(dir, "b.yaml"), ns("x", "second"))
	v := run(t, time.Hour, dir)
	v.wait("x=first")
	v.waitStatus("named", func(st source.Status) bool {
		return strings.Contains(st.Duplicates.Error(), "/b.yaml:2: Namespace x: same object as at ") &&
			strings.Contains(st.Duplicates.Error(), "/a.yaml:2, which counts")
	})
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	v.wait("x=second")
}

func TestPathThatAppearsLaterIsRead(t *testing.T) {
	base := t.TempDir()
	good, late := filepath.Join(base, "good"), filepath.Join(base, "late")
	if err := os.Mkdir(good, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(good, "a.yaml"), ns("a", "1"))
	v := run(t, time.Hour, good, late)
	v.wait("a=1")
	testkit.Eventually(t, patience, func() error {
		if st := v.src.Status(); st.Synced || st.Degraded == nil || !strings.Contains(st.Degraded.Error(), late) {
			return fmt.Errorf("status %+v", st)
		}
		return nil
	})
	if err := os.Mkdir(late, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(late, "b.yaml"), ns("b", "1"))
	v.wait("a=1 b=1")
	t.Run("objects of a directory that disappears stay", func(t *testing.T) {
		if err := os.RemoveAll(late); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, patience, func() error {
			if v.src.Status().Degraded == nil {
				return fmt.Errorf("not degraded")
			}
			return nil
		})
		v.wait("a=1 b=1")
	})
}

// TestResyncFindsWhatNotificationsMissed: a resync reads a changed file behind a link whose directory is not watched.
func TestResyncFindsWhatNotificationsMissed(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "real.yaml")
	write(t, elsewhere, ns("a", "1"))
	dir := t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(dir, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	v := run(t, 100*time.Millisecond, dir)
	v.wait("a=1")
	write(t, elsewhere, ns("a", "2"))
	v.wait("a=2")
}

// TestOtherFilesCostLittle: a notification about another file of the directory does not cost a pass over all objects.
func TestOtherFilesCostLittle(t *testing.T) {
	const objects = 500
	var text strings.Builder
	for i := range objects {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: ns-%d}\n", i)
	}
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	src := New(Config{Name: "file", Paths: []string{path}, Log: testkit.Logger(t), Clock: clock.Real()})
	src.Handle(func(_ context.Context, _ string, events []source.Event) {
		if len(events) != objects {
			t.Errorf("%d events, want %d", len(events), objects)
		}
	})
	src.scan(t.Context(), nil, true)
	if allocations := testing.AllocsPerRun(10, func() { src.scan(t.Context(), nil, false) }); allocations > objects/5 {
		t.Errorf("%v allocations for nothing", allocations)
	}
	if got := src.Status(); !got.Synced || got.Objects != objects {
		t.Errorf("status %+v", got)
	}
}
