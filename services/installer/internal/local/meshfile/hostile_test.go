package meshfile_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/services/installer/internal/local/meshfile"
	"fairlead.dev/services/installer/internal/objectfile"
)

// bomb is a text of 1.5 KB with aliases to it that expand to 100 MB.
var bomb = "a: &a " + strings.Repeat("x", 1500) + "\nb: [" + strings.Repeat("*a,", 70_000) + "]\n"

// TestHostileFiles: YAML that expands beyond a bound is refused before it is expanded, wherever in a mesh file it
// stands.
func TestHostileFiles(t *testing.T) {
	indented := "    " + strings.ReplaceAll(strings.TrimSpace(bomb), "\n", "\n    ") + "\n"
	for name, tc := range map[string]struct{ content, want string }{
		"a document": {"apiVersion: v1\nkind: Thing\nmetadata: {name: a}\n" + bomb, "with its aliases written out"},
		"the mesh's own": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n" + indented,
			"with its aliases written out"},
		"many values":      {"a: [" + strings.Repeat("{},", 300_000) + "]", "values or more"},
		"a large document": {"a: " + strings.Repeat("x", 4<<20), "more than 3145728"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, t.TempDir(), "mesh.yaml", tc.content)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := meshfile.Load([]string{path})
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "mesh.yaml:") {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if got := (after.TotalAlloc - before.TotalAlloc) >> 20; got > 60 {
				t.Errorf("%d MiB were allocated", got)
			}
		})
	}
	m, err := meshfile.Load([]string{write(t, t.TempDir(), "mesh.yaml", deployment)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.ProxyConfig(m.Deployments[0].Source, nil, map[string]string{proxyconfig.Annotation: bomb})
	if err == nil || !strings.Contains(err.Error(), "with its aliases written out") {
		t.Errorf("an annotation: %v", err)
	}
}

// TestBoundsOfFiles: a directory is read within bounds, and no file blocks the reader.
func TestBoundsOfFiles(t *testing.T) {
	refused := func(t *testing.T, want string, paths ...string) {
		t.Helper()
		if _, err := meshfile.Load(paths); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	dir := t.TempDir()
	write(t, dir, "a.yaml", deployment)
	pipe := filepath.Join(dir, "pipe.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, "not a regular file", pipe)
	if m, err := meshfile.Load([]string{dir}); err != nil || len(m.Files) != 1 {
		t.Errorf("a pipe in a directory: %v", err)
	}

	large := t.TempDir()
	for i := range 5 {
		path := write(t, large, strconv.Itoa(i)+".yaml", "")
		if err := os.Truncate(path, 60<<20); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, "more than 268435456 bytes", large)
	if err := os.Truncate(filepath.Join(large, "0.yaml"), objectfile.MaxFileBytes+1); err != nil {
		t.Fatal(err)
	}
	refused(t, "more than 67108864 bytes", filepath.Join(large, "0.yaml"))

	// Links that multiply to 12 to the power of 6 names.
	first := t.TempDir()
	for at, level := first, 0; level < 6; level++ {
		below := t.TempDir()
		for i := range 12 {
			if err := os.Symlink(below, filepath.Join(at, strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
		at = below
	}
	refused(t, "more than 100000 names", first)
}
