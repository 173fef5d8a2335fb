package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
)

// stage is a source whose scans and clock the test controls.
type stage struct {
	t       *testing.T
	src     *Source
	clock   *testkit.Clock
	saved   *lastgood.Dir
	state   string
	paths   []string
	objects map[string]string
	removed int
}

// newStage starts the clock later than the files that the test writes, so that they are not fresh.
func newStage(t *testing.T, paths ...string) *stage {
	s := &stage{t: t, clock: testkit.NewClock(time.Now().Add(time.Hour)), state: filepath.Join(t.TempDir(), "state"), paths: paths}
	s.start()
	return s
}

// start begins a run of the process with the state that the last one has saved.
func (s *stage) start() {
	s.t.Helper()
	if s.saved != nil {
		if err := s.saved.Flush(); err != nil {
			s.t.Fatal(err)
		}
	}
	s.saved = lastgood.New(lastgood.Config{Path: s.state, Log: testkit.Logger(s.t), Clock: s.clock})
	s.objects = map[string]string{}
	s.src = New(Config{Name: "file", Paths: s.paths, Log: testkit.Logger(s.t), Clock: s.clock, Saved: s.saved})
	s.src.Handle(func(_ context.Context, _ string, events []source.Event) {
		for _, e := range events {
			if e.Object == nil {
				delete(s.objects, e.Key.Name)
				s.removed++
			} else {
				s.objects[e.Key.Name] = e.Object.Labels["v"]
			}
		}
	})
	s.scan()
}

// scan runs a scan, and those that it asks for within the time given.
func (s *stage) scan() time.Duration {
	s.t.Helper()
	again, err := s.src.scan(s.t.Context(), nil, false)
	if err != nil {
		s.t.Fatal(err)
	}
	return again
}

// pass advances the clock and runs the scans that the source has asked for.
func (s *stage) pass(d time.Duration) {
	s.t.Helper()
	for d > 0 {
		step := s.scan()
		if step <= 0 || step > d {
			step = d
		}
		s.clock.Advance(step)
		d -= step
	}
	s.scan()
}

// want compares the objects, "a=1 b=1", and the reported grace: "" for none.
func (s *stage) want(objects, staying string) {
	s.t.Helper()
	var got []string
	for name, v := range s.objects {
		got = append(got, name+"="+v)
	}
	slices.Sort(got)
	if text := strings.Join(got, " "); text != objects {
		s.t.Errorf("objects %q, want %q", text, objects)
	}
	text := ""
	for _, st := range s.src.Status().Staying {
		text += fmt.Sprintf("%s %s:", st.File, st.Why)
		for _, o := range st.Objects {
			text += " " + o.Key.Name
		}
	}
	if text != staying {
		s.t.Errorf("told %q, want %q", text, staying)
	}
}

// TestGrace lists, for each change of a file, its objects at once, after a second, just before the end of the grace,
// and after it.
func TestGrace(t *testing.T) {
	good := ns("a", "1") + ns("b", "1") + ns("c", "1")
	broken := strings.Replace(ns("b", "2"), "labels", "lables", 1)
	for name, c := range map[string]struct {
		harm                 func(path string) error
		during, told, after  string
		problem              string
		unlimited, immediate bool
	}{
		"gone":    {harm: os.Remove, during: "a=1 b=1 c=1", told: "mesh.yaml is gone: a b c"},
		"emptied": {harm: text(""), during: "a=1 b=1 c=1", told: "mesh.yaml is empty: a b c"},
		"blank":   {harm: text(" \n\n"), during: "a=1 b=1 c=1", told: "mesh.yaml is empty: a b c"},
		"all but comments removed": {harm: text("# all of it\n---\n# is gone\n"), during: "a=1 b=1 c=1",
			told: "mesh.yaml holds no object any more: a b c"},
		"cut off in a line": {
			harm: text(ns("a", "2") + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: b, labels: {v: \"1\"}}"), during: "a=2 b=1 c=1",
			told: "mesh.yaml ends in the middle of a line: b c", after: "a=2 b=1"},
		"cut off in an object's line": {harm: text(ns("a", "2") + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: b}\nspec"),
			during: "a=2 b=1 c=1", problem: "mesh.yaml:10", unlimited: true},
		"its last object is refused": {harm: text(ns("a", "2") + broken), during: "a=2 b=1 c=1",
			told: "mesh.yaml ends with an object that is refused, and may be cut off: c", problem: "lables", after: "a=2 b=1"},
		"an object before is refused":   {harm: text(broken + ns("a", "2")), immediate: true, after: "a=2 b=1", problem: "lables"},
		"whole, with fewer objects":     {harm: text(ns("a", "2") + ns("b", "1")), immediate: true, after: "a=2 b=1"},
		"whole, with others":            {harm: text(ns("d", "1")), immediate: true, after: "d=1"},
		"kinds that nobody reads alone": {harm: text("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n"), immediate: true, after: ""},
		"unreadable": {harm: func(path string) error {
			return replaceBy(path, func() error { return os.Symlink(path, path) })
		}, during: "a=1 b=1 c=1", problem: "too many levels", unlimited: true},
		"a directory": {harm: func(path string) error { return replaceBy(path, func() error { return os.Mkdir(path, 0o700) }) },
			during: "a=1 b=1 c=1", problem: "cannot be read", unlimited: true},
		"moved": {harm: func(path string) error { return os.Rename(path, filepath.Join(filepath.Dir(path), "other.yaml")) },
			immediate: true, after: "a=1 b=1 c=1"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mesh.yaml")
			write(t, path, good)
			s := newStage(t, filepath.Dir(path))
			s.want("a=1 b=1 c=1", "")
			if err := c.harm(path); err != nil {
				t.Fatal(err)
			}
			s.scan()
			if c.immediate {
				s.want(c.after, "")
				s.pass(time.Minute)
				s.want(c.after, "")
				if name == "moved" && s.removed > 0 {
					t.Errorf("%d removals", s.removed)
				}
				return
			}
			s.want(c.during, "")
			told := strings.ReplaceAll(c.told, "mesh.yaml", filepath.Base(filepath.Dir(path))+"/mesh.yaml")
			s.pass(time.Second)
			s.want(c.during, told)
			s.pass(28 * time.Second)
			s.want(c.during, told)
			if st := s.src.Status(); !strings.Contains(fmt.Sprint(st.Problems, st.Degraded), c.problem) {
				got := fmt.Sprint(st.Problems, st.Degraded)
				t.Errorf("problems %q, want %q", got, c.problem)
			}
			s.pass(time.Second)
			after := c.after
			if c.unlimited {
				s.pass(time.Hour)
				after = c.during
			}
			s.want(after, "")
		})
	}
}

func text(content string) func(path string) error {
	return func(path string) error { return os.WriteFile(path, []byte(content), 0o600) }
}

func replaceBy(path string, make func() error) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return make()
}

// TestGraceEndsWhenTheFileIsBack: the grace ends when the file is back as it was or with other objects, and goes on if
// its new state is no better.
func TestGraceEndsWhenTheFileIsBack(t *testing.T) {
	good := ns("a", "1") + ns("b", "1")
	for name, c := range map[string]struct{ content, objects, told string }{
		"as it was":    {good, "a=1 b=1", ""},
		"with others":  {ns("a", "2") + ns("c", "1"), "a=2 c=1", ""},
		"with fewer":   {ns("b", "1"), "b=1", ""},
		"cut off":      {ns("b", "1") + ns("a", "2")[:len(ns("a", "2"))-1], "a=1 b=1", "mesh.yaml ends in the middle of a line: a"},
		"still blank":  {"# nothing\n", "a=1 b=1", "mesh.yaml holds no object any more: a b"},
		"with a fault": {strings.Replace(good, "labels", "lables", 1), "a=1 b=1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mesh.yaml")
			aside := path + "-aside"
			write(t, path, good)
			s := newStage(t, path)
			if err := os.Rename(path, aside); err != nil {
				t.Fatal(err)
			}
			s.pass(10 * time.Second)
			s.want("a=1 b=1", "mesh.yaml is gone: a b")
			if name == "as it was" {
				if err := os.Rename(aside, path); err != nil {
					t.Fatal(err)
				}
			} else {
				write(t, path, c.content)
			}
			s.scan()
			s.want(c.objects, c.told)
			if name == "as it was" && s.removed > 0 {
				t.Errorf("%d removals", s.removed)
			}
			// The end of the grace does not move, however often the file changes.
			s.pass(20 * time.Second)
			if got := s.src.Status().Staying; len(got) > 0 {
				t.Errorf("still in its grace: %v", got)
			}
		})
	}
}

// TestKeptObjectsAreNotForgotten: objects kept beside cut-off content stay for the rest of the grace when that file
// vanishes and comes back.
func TestKeptObjectsAreNotForgotten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, path, ns("a", "1")+ns("b", "1"))
	s := newStage(t, path)
	write(t, path, ns("a", "1")+"#")
	s.pass(10 * time.Second)
	s.want("a=1 b=1", "mesh.yaml ends in the middle of a line: a b")
	if err := os.Rename(path, path+"-aside"); err != nil {
		t.Fatal(err)
	}
	s.pass(5 * time.Second)
	s.want("a=1 b=1", "mesh.yaml is gone: a b")
	if err := os.Rename(path+"-aside", path); err != nil {
		t.Fatal(err)
	}
	s.pass(10 * time.Second)
	s.want("a=1 b=1", "mesh.yaml ends in the middle of a line: a b")
	s.pass(5 * time.Second)
	s.want("a=1", "")
}

// TestSlowWriters: a file's content is not taken over while a process has just written to it, until the grace is over.
func TestSlowWriters(t *testing.T) {
	good := ns("a", "1") + ns("b", "1") + ns("c", "1")
	next := strings.ReplaceAll(good, `"1"`, `"2"`)
	for name, keepsOpen := range map[string]bool{"one that keeps the file open": true, "one that opens it for each line": false} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mesh.yaml")
			write(t, path, good)
			s := newStage(t, path)
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.SplitAfter(next, "\n") {
				if !keepsOpen {
					_ = f.Close()
					if f, err = os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := f.WriteString(line); err != nil {
					t.Fatal(err)
				}
				if !keepsOpen {
					_ = f.Close()
				}
				if err := os.Chtimes(path, s.clock.Now(), s.clock.Now()); err != nil {
					t.Fatal(err)
				}
				s.scan()
				if s.objects["c"] == "1" {
					s.want("a=1 b=1 c=1", told(s))
				}
				s.pass(800 * time.Millisecond)
			}
			_ = f.Close()
			s.pass(time.Second)
			s.want("a=2 b=2 c=2", "")
			if s.removed > 0 {
				t.Errorf("%d removals", s.removed)
			}
		})
	}
	t.Run("a writer that never ends", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "mesh.yaml")
		write(t, path, good)
		s := newStage(t, path)
		for i := range 58 {
			write(t, path, ns("a", "2")+strings.Repeat("#\n", i))
			if err := os.Chtimes(path, s.clock.Now(), s.clock.Now()); err != nil {
				t.Fatal(err)
			}
			s.pass(500 * time.Millisecond)
		}
		s.want("a=1 b=1 c=1", "mesh.yaml is being written: a b c")
		s.pass(time.Second)
		s.want("a=2", "")
	})
}

// told is the present report, for a test that does not check it.
func told(s *stage) string {
	text := ""
	for _, st := range s.src.Status().Staying {
		text += fmt.Sprintf("%s %s:", st.File, st.Why)
		for _, o := range st.Objects {
			text += " " + o.Key.Name
		}
	}
	return text
}

// TestRestartInGrace: a restart does not move the end of a grace, and a file that vanished between two runs has one
// too.
func TestRestartInGrace(t *testing.T) {
	for _, configured := range []string{"directory", "file"} {
		t.Run("a configured "+configured, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "mesh.yaml")
			write(t, path, ns("a", "1"))
			paths := map[string]string{"directory": dir, "file": path}
			s := newStage(t, paths[configured])
			told := strings.TrimPrefix(filepath.Base(dir)+"/", map[string]string{"file": filepath.Base(dir) + "/"}[configured]) +
				"mesh.yaml is gone: a"
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			s.pass(10 * time.Second)
			for range 2 {
				s.start()
				s.want("a=1", told)
				if !s.src.Status().Synced {
					t.Errorf("status %+v", s.src.Status())
				}
				s.pass(9 * time.Second)
				s.want("a=1", told)
			}
			s.pass(2 * time.Second)
			s.want("", "")
			s.start()
			s.want("", "")
		})
	}
	t.Run("a start in the future is ignored", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "mesh.yaml")
		write(t, path, ns("a", "1"))
		s := newStage(t, dir)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		s.pass(10 * time.Second)
		s.clock = testkit.NewClock(s.clock.Now().Add(-24 * time.Hour))
		s.start()
		s.pass(29 * time.Second)
		s.want("a=1", filepath.Base(dir)+"/mesh.yaml is gone: a")
		s.pass(time.Second)
		s.want("", "")
	})
	t.Run("a file that vanished between two runs", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "mesh.yaml")
		write(t, path, ns("a", "1"))
		write(t, filepath.Join(dir, "other.yaml"), ns("b", "1"))
		s := newStage(t, dir)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		s.start()
		s.pass(29 * time.Second)
		s.want("a=1 b=1", filepath.Base(dir)+"/mesh.yaml is gone: a")
		s.pass(time.Second)
		s.want("b=1", "")
	})
	t.Run("a file that was cut off", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "mesh.yaml")
		write(t, path, ns("a", "1")+ns("b", "1"))
		s := newStage(t, path)
		write(t, path, ns("a", "1")+"#")
		s.pass(10 * time.Second)
		s.start()
		s.pass(19 * time.Second)
		s.want("a=1 b=1", "mesh.yaml ends in the middle of a line: b")
		s.pass(time.Second)
		s.want("a=1", "")
	})
	t.Run("a file that was cut off within its last object, and not refused, between two runs", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "mesh.yaml")
		const last = "---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: b\n  labels:\n    v: x"
		write(t, path, ns("a", "1")+last+"2\n")
		s := newStage(t, path)
		write(t, path, ns("a", "1")+last)
		s.start()
		s.pass(10 * time.Second)
		s.want("a=1 b=x2", "mesh.yaml ends in the middle of a line: b")
		s.start()
		s.pass(10 * time.Second)
		s.want("a=1 b=x2", "mesh.yaml ends in the middle of a line: b")
	})
	t.Run("a file that never ends with a line break", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "mesh.yaml")
		write(t, path, strings.TrimSuffix(ns("a", "1"), "\n"))
		s := newStage(t, path)
		s.start()
		s.want("a=1", "")
	})
}

// TestReturnedFileIsReadAtOnce: a file that is back is read at once, however far the end of its grace is away.
func TestReturnedFileIsReadAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, path, ns("a", "1"))
	v := runConfig(t, Config{Paths: []string{path}, Resync: time.Hour, Grace: time.Hour})
	v.wait("a=1")
	if err := os.Rename(path, path+"-aside"); err != nil {
		t.Fatal(err)
	}
	v.waitStatus("in its grace", func(st source.Status) bool {
		return len(st.Staying) == 1 && strings.Contains(st.Staying[0].String(), "mesh.yaml is gone: its 1 last objects stay until ")
	})
	write(t, path, ns("a", "2"))
	v.wait("a=2")
	v.waitStatus("whole", func(st source.Status) bool { return len(st.Staying) == 0 })
}

// TestUnreadObjectsAreNamed: objects of unread kinds are reported, and delay nothing.
func TestUnreadObjectsAreNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, path, ns("a", "1")+"---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: "+
		"gateway.networking.x-k8s.io/v1alpha1\n  kind: XBackend\n  "+
		"metadata: {name: r, namespace: apps}\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: b}\n")
	v := run(t, time.Hour, path)
	v.wait("a=1 b=")
	st := v.src.Status()
	if st.UnreadTotal != 1 || !strings.Contains(st.Unread.Error(),
		"mesh.yaml:9: XBackend apps/r: kind: gateway.networking.x-k8s.io/v1alpha1 XBackend: nobody reads this kind") {
		t.Errorf("unread %v", st.Unread)
	}
	if len(st.Problems) > 0 {
		t.Errorf("problems %v", st.Problems)
	}
	if got := v.objects[object.Key{Kind: "Namespace", Name: "b"}]; got == nil || got.Location != "mesh.yaml:12" {
		t.Errorf("the item of the List is %+v", got)
	}
}
