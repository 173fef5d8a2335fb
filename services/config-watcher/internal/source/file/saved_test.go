package file

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/source/record"
)

// restarts runs a source repeatedly with one directory of last good states.
type restarts struct {
	t     *testing.T
	dir   string
	codec record.Codec
	paths []string
}

func newRestarts(t *testing.T, paths ...string) *restarts {
	return &restarts{t: t, dir: filepath.Join(t.TempDir(), "state"), paths: paths}
}

// run starts the source; its state is saved when the returned view is stopped.
func (r *restarts) run() *view {
	r.t.Helper()
	saved := lastgood.New(lastgood.Config{Path: r.dir, Log: testkit.Logger(r.t), Clock: clock.Real()})
	v := runConfig(r.t, Config{Paths: r.paths, Resync: time.Hour, Saved: saved, Codec: r.codec})
	stop := v.stop
	v.stop = func() {
		stop()
		if err := saved.Flush(); err != nil {
			r.t.Error(err)
		}
	}
	return v
}

// files lists the saved files without the marks of read paths.
func (r *restarts) files() []string {
	r.t.Helper()
	var out []string
	err := filepath.WalkDir(r.dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && e.Name() != readMark {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// put writes a file and makes its directory.
func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, path, []byte(content))
}

func (v *view) waitStatus(what string, ok func(source.Status) bool) source.Status {
	v.t.Helper()
	var st source.Status
	testkit.Eventually(v.t, patience, func() error {
		if st = v.src.Status(); !ok(st) {
			return fmt.Errorf("not %s: %+v", what, st)
		}
		return nil
	})
	return st
}

func synced(st source.Status) bool { return st.Synced }

func lastGood(st source.Status) bool { return !st.LastGood.IsZero() }

func pa(name, namespace, spec string) string {
	return fmt.Sprintf("---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: %s, namespace: %s}\nspec: %s\n",
		name, namespace, spec)
}

// closed lists the delivered PeerAuthentications: "namespace/name mode labels", and "held" for those that replace a
// broken one.
func (v *view) closed() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []string
	for k, o := range v.objects {
		if spec, ok := o.Body.(*security.PeerAuthentication); ok {
			text := fmt.Sprintf("%s/%s %s %v", k.Namespace, k.Name, spec.Mtls.GetMode(), spec.GetSelector().GetMatchLabels())
			if o.Held {
				text += " held"
			}
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// TestUnreadableAtStart: a source that cannot be read settles only if an earlier run has saved its state, and reports
// that it serves this state.
func TestUnreadableAtStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mesh")
	a := filepath.Join(dir, "a.yaml")
	put(t, a, ns("a", "1"))
	put(t, filepath.Join(dir, "b.yaml"), ns("b", "1"))
	aside := dir + "-aside"
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	r := newRestarts(t, dir)
	move(dir, aside)
	v := r.run()
	if st := v.waitStatus("degraded", func(st source.Status) bool { return st.Degraded != nil }); st.Settled() ||
		!strings.Contains(st.Degraded.Error(), dir) {
		t.Errorf("never read, and settled: %+v", st)
	}
	move(aside, dir)
	v.wait("a=1 b=1")
	v.waitStatus("synced", synced)
	v.stop()

	for name, c := range map[string]struct{ harm, mend func() }{
		"directory missing": {func() { move(dir, aside) }, func() { move(aside, dir) }},
		"file in place of directory": {func() { move(dir, aside); write(t, dir, ""); _ = os.Remove(dir); _ = os.Symlink(dir, dir) },
			func() { _ = os.Remove(dir); move(aside, dir) }},
		"one file cannot be read": {func() { move(a, aside); _ = os.Symlink(a, a) }, func() { _ = os.Remove(a); move(aside, a) }},
		"one file is something other": {func() { move(a, aside); _ = os.Symlink("/proc/self/mem", a) },
			func() { _ = os.Remove(a); move(aside, a) }},
	} {
		t.Run(name, func(t *testing.T) {
			c.harm()
			v := r.run()
			v.t = t
			v.wait("a=1 b=1")
			if st := v.waitStatus("served from its last good state", lastGood); st.Synced || st.Degraded == nil || !st.Settled() {
				t.Errorf("status %+v", st)
			}
			c.mend()
			v.waitStatus("synced", func(st source.Status) bool { return st.Synced && st.LastGood.IsZero() && st.Degraded == nil })
			v.wait("a=1 b=1")
			v.mu.Lock()
			if v.batches != 1 {
				t.Errorf("objects changed %d times though their files never did", v.batches)
			}
			v.mu.Unlock()
			v.stop()
		})
	}
}

// TestLastGoodVersionsOutliveRestart: last good versions outlive a restart, whether the object broke before it or while
// the watcher was down.
func TestLastGoodVersionsOutliveRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	strict := pa("strict", "apps", "{mtls: {mode: STRICT}}")
	write(t, path, ns("a", "1")+ns("b", "1")+ns("c", "1")+strict)
	r := newRestarts(t, path)
	v := r.run()
	v.wait("a=1 b=1 c=1 strict=")
	broken := ns("a", "2") + strings.Replace(ns("b", "2"), "labels", "lables", 1) + ns("c", "2")
	testkit.WriteFile(t, path, []byte(broken+strict[:len(strict)-12]))
	v.wait("a=2 b=1 c=2 strict=")
	v.stop()
	for range 2 { // what was kept once is kept again
		v = r.run()
		v.wait("a=2 b=1 c=2 strict=")
		v.waitStatus("synced", synced)
		v.waitProblem("metadata.lables")
		if got := v.closed(); got != "apps/strict STRICT map[]" {
			t.Errorf("closed %q", got)
		}
		v.stop()
	}
	t.Run("an object broken while down keeps its last good version", func(t *testing.T) {
		testkit.WriteFile(t, path, []byte(strings.Replace(ns("a", "3"), "labels", "lables", 1)+ns("c", "3")+
			pa("strict", "apps", "{mtls: {mode: STRI}}")))
		v := r.run()
		v.t = t
		v.wait("a=2 c=3 strict=") // b was removed, not broken
		if got := v.closed(); got != "apps/strict STRICT map[]" {
			t.Errorf("closed %q", got)
		}
		v.stop()
	})
	t.Run("an object removed while down is removed", func(t *testing.T) {
		testkit.WriteFile(t, path, []byte(ns("c", "3")))
		v := r.run()
		v.t = t
		v.waitStatus("synced", synced)
		v.wait("c=3")
		v.stop()
	})
	t.Run("objects of a file removed while down stay for the grace", func(t *testing.T) {
		other := filepath.Join(filepath.Dir(path), "dir", "x.yaml")
		put(t, other, ns("x", "1"))
		r.paths = append(r.paths, filepath.Dir(other))
		v := r.run()
		v.t = t
		v.wait("c=3 x=1")
		v.stop()
		if err := os.Remove(other); err != nil {
			t.Fatal(err)
		}
		v = r.run()
		v.waitStatus("synced", synced)
		v.wait("c=3")
		v.stop()
		if n := len(r.files()); n != 1 {
			t.Errorf("%d files saved", n)
		}
	})
}

// TestAnotherConfigurationIsNotResurrected: saved objects of a path that is no longer configured are not loaded, and
// are removed.
func TestAnotherConfigurationIsNotResurrected(t *testing.T) {
	base := t.TempDir()
	one, two := filepath.Join(base, "one"), filepath.Join(base, "two")
	put(t, filepath.Join(one, "a.yaml"), ns("a", "1"))
	put(t, filepath.Join(two, "a.yaml"), ns("b", "1"))
	r := newRestarts(t, one)
	v := r.run()
	v.wait("a=1")
	v.stop()
	r.paths = []string{two}
	v = r.run()
	v.waitStatus("synced", synced)
	v.wait("b=1")
	v.stop()
	if err := os.RemoveAll(one); err != nil {
		t.Fatal(err)
	}
	r.paths = []string{two, one}
	v = r.run()
	v.wait("b=1")
	if st := v.waitStatus("degraded", func(st source.Status) bool { return st.Degraded != nil }); st.Settled() {
		t.Errorf("settled with a path that nobody has read: %+v", st)
	}
}

// TestDamagedStateIsNamed: intact records of a damaged state are served, and a damaged record of a security object
// holds the mesh closed.
func TestDamagedStateIsNamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mesh")
	put(t, filepath.Join(dir, "a.yaml"), ns("a", "1")+ns("b", "1")+pa("strict", "apps", "{mtls: {mode: STRICT}}"))
	r := newRestarts(t, dir)
	v := r.run()
	v.wait("a=1 b=1 strict=")
	v.stop()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	file := r.files()[0]
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(content, []byte("\n"))
	lines[1][40] ^= 1
	lines[2] = lines[2][:len(lines[2])/2]
	write(t, file, string(bytes.Join(lines, nil)))
	v = r.run()
	v.waitStatus("served from its last good state", lastGood)
	if got := v.names(); !strings.HasPrefix(got, "0-held-closed-") || !strings.HasSuffix(got, " a=1") {
		t.Errorf("objects %q", got)
	}
	if got := v.closed(); !strings.Contains(got, "STRICT map[] held") || !strings.HasPrefix(got, "/") {
		t.Errorf("closed %q", got)
	}
	v.waitProblem("holds the whole mesh closed: STRICT until corrected")
}

// TestBrokenSecurityObjectHoldsClosed: without a last good version, the workloads that the object selects are held
// closed until it is corrected.
func TestBrokenSecurityObjectHoldsClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	selected := pa("strict", "apps", "{selector: {matchLabels: {app: x}}, mtls: {mode: STRICT}}")
	for name, c := range map[string]struct{ text, closed string }{
		"value":          {strings.Replace(selected, "STRICT", "STRI", 1), "apps/strict STRICT map[app:x] held"},
		"cut off":        {selected[:len(selected)-9], "apps/strict STRICT map[] held"},
		"cut off before": {selected[:strings.Index(selected, "namespace")], "/0-held-closed-"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.WriteFile(t, path, []byte(ns("a", "1")+c.text))
			v := newRestarts(t, path).run()
			v.t = t
			v.waitStatus("synced", synced)
			if got := v.closed(); !strings.HasPrefix(got, c.closed) {
				t.Errorf("closed %q, want %q", got, c.closed)
			}
			if st := v.src.Status(); st.Held != 1 {
				t.Errorf("status %+v", st)
			}
			v.waitProblem("closed: STRICT until corrected")
			testkit.WriteFile(t, path, []byte(ns("a", "1")+selected))
			testkit.Eventually(t, patience, func() error {
				if got := v.closed(); got != "apps/strict STRICT map[app:x]" {
					return errors.New(got)
				}
				return nil
			})
			v.waitProblem("")
			// From here on there is a last good version.
			testkit.WriteFile(t, path, []byte(ns("a", "2")+c.text))
			v.wait("a=2 strict=")
			if got := v.closed(); got != "apps/strict STRICT map[app:x]" {
				t.Errorf("closed %q", got)
			}
			v.stop()
		})
	}
}

// TestDanglingLink: a file behind a dangling link counts as unreadable, not as removed.
func TestDanglingLink(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mesh")
	target := filepath.Join(filepath.Dir(dir), "target.yaml")
	put(t, target, ns("b", "1"))
	put(t, filepath.Join(dir, "a.yaml"), ns("a", "1"))
	if err := os.Symlink(target, filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	r := newRestarts(t, dir)
	v := r.run()
	v.wait("a=1 b=1")
	v.stop()
	if err := os.Remove(target); err != nil {
		t.Fatal(err)
	}
	v = r.run()
	v.wait("a=1 b=1")
	v.waitStatus("served from its last good state", lastGood)
	v.stop()
	v = run(t, time.Hour, dir)
	v.wait("a=1")
	if st := v.waitStatus("degraded", func(st source.Status) bool { return st.Degraded != nil }); st.Settled() {
		t.Errorf("settled without a file that nobody has read: %+v", st)
	}
}

func TestSavedSecretsAreEncrypted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mesh")
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: apps}\nstringData: {password: hunter2}\n"
	put(t, filepath.Join(dir, "a.yaml"), ns("a", "1")+"---\n"+secret)
	r := newRestarts(t, dir)
	codec := func(list ...byte) record.Codec {
		path := filepath.Join(t.TempDir(), "keys")
		var text string
		for _, key := range list {
			text += hex.EncodeToString(bytes.Repeat([]byte{key}, 32)) + "\n"
		}
		write(t, path, text)
		keys, err := record.ReadKeys(path)
		if err != nil {
			t.Fatal(err)
		}
		return record.Codec{Sealer: keys}
	}
	saved := func() string {
		content, err := os.ReadFile(r.files()[0])
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	for i, c := range []record.Codec{{}, codec(1), codec(2, 1), codec(2)} {
		r.codec = c
		v := r.run()
		v.wait("a=1 s=")
		v.stop()
		if hidden := !strings.Contains(saved(), "hunter2"); hidden != (i > 0) {
			t.Errorf("%d: %s", i, saved())
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	before := saved()
	for _, c := range []record.Codec{{}, codec(1)} {
		src := New(Config{
			Name: "file", Paths: r.paths, Log: testkit.Logger(t), Clock: clock.Real(), Codec: c,
			Saved: lastgood.New(lastgood.Config{Path: r.dir, Log: testkit.Logger(t), Clock: clock.Real()}),
		})
		src.Handle(func(context.Context, string, []source.Event) { t.Error("delivered without the key") })
		if err := src.Run(t.Context()); !errors.Is(err, record.ErrLocked) || !strings.Contains(err.Error(), "--store-encryption-key-file") {
			t.Errorf("without the key: %v", err)
		}
	}
	if saved() != before {
		t.Error("the state was changed")
	}
	v := r.run()
	v.wait("a=1 s=")
}

// TestSomethingElseInPlaceOfAFile: a file that a directory, pipe or socket replaces counts as unreadable, not as
// removed, before and after a restart. After the name was free for a while the replacement is ignored.
func TestSomethingElseInPlaceOfAFile(t *testing.T) {
	strict := pa("strict", "apps", "{mtls: {mode: STRICT}}")
	for name, replace := range map[string]func(t *testing.T, path string){
		"directory":         func(t *testing.T, path string) { put(t, filepath.Join(path, "x.yaml"), ns("x", "1")) },
		"link to directory": func(t *testing.T, path string) { link(t, t.TempDir(), path) },
		"link to device":    func(t *testing.T, path string) { link(t, "/dev/zero", path) },
		"pipe": func(t *testing.T, path string) {
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"socket": func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
		},
	} {
		for _, configured := range []string{"directory", "file"} {
			t.Run(name+" in a configured "+configured, func(t *testing.T) {
				// A socket's path is short.
				dir, err := os.MkdirTemp("", "m")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = os.RemoveAll(dir) })
				path, other := filepath.Join(dir, "mesh", "pa.yaml"), filepath.Join(dir, "other.yaml")
				put(t, path, strict)
				put(t, other, ns("a", "1"))
				r := newRestarts(t, filepath.Dir(path), other)
				if configured == "file" {
					r.paths[0] = path
				}
				v := r.run()
				v.t = t
				v.wait("a=1 strict=")
				aside := filepath.Join(dir, "aside")
				if err := os.Rename(path, aside); err != nil {
					t.Fatal(err)
				}
				replace(t, path)
				named := func(st source.Status) bool {
					return strings.Contains(fmt.Sprint(st.Problems, st.Degraded), "pa.yaml")
				}
				v.waitStatus("named", named)
				put(t, other, ns("a", "2"))
				v.wait("a=2 strict=")
				v.stop()
				v = r.run()
				v.waitStatus("served from its last good state", func(st source.Status) bool { return lastGood(st) && named(st) })
				v.wait("a=2 strict=")
				if err := os.Rename(path, aside+"2"); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(aside, path); err != nil {
					t.Fatal(err)
				}
				v.waitStatus("synced", func(st source.Status) bool { return st.Synced && !named(st) })
				v.wait("a=2 strict=")
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				v.wait("a=2")
				put(t, filepath.Join(path, "x.yaml"), ns("x", "1"))
				v.wait("a=2 x=1")
				v.stop()
			})
		}
	}
}
