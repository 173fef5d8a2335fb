package file

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// TestBoundsOfADirectory: beyond a bound the source reports the directory, the limit and the remedy, and keeps its
// objects; it reads the directory again when that is within the bounds.
func TestBoundsOfADirectory(t *testing.T) {
	for name, tc := range map[string]struct {
		disturb func(t *testing.T, dir string)
		want    []string
	}{
		"links that multiply": {func(t *testing.T, dir string) {
			for level := range 6 {
				below := mkdir(t, filepath.Join(dir, "..", ".d"+strconv.Itoa(level)))
				for i := range 12 {
					link(t, below, filepath.Join(dir, fmt.Sprint("l", i)))
				}
				dir = below
			}
		}, []string{"more than 100000 names"}},
		"a link that leads back": {func(t *testing.T, dir string) { link(t, "..", filepath.Join(dir, "l")) },
			[]string{"nest deeper than 16 levels", "remove it"}},
		"too many bytes": {func(t *testing.T, dir string) {
			for i := range 5 {
				sparse(t, filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), 60<<20)
			}
		}, []string{"more than 268435456 bytes", "divide it"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "mesh")
			write(t, mkdir(t, dir)+"/a.yaml", ns("a", "1"))
			v := run(t, 50*time.Millisecond, dir)
			v.wait("a=1")
			bad := mkdir(t, filepath.Join(dir, "bad"))
			tc.disturb(t, bad)
			testkit.Eventually(t, patience, func() error {
				err := v.src.Status().Degraded
				for _, want := range append(tc.want, dir) {
					if err == nil || !strings.Contains(err.Error(), want) {
						return fmt.Errorf("degraded: %w, want %q", err, want)
					}
				}
				return nil
			})
			v.wait("a=1")
			if err := os.RemoveAll(bad); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "a.yaml"), ns("a", "2"))
			v.wait("a=2")
		})
	}
}

// TestManyNames: in a directory of too many names the listing ends at the bound, before it examines any of them.
func TestManyNames(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 * entriesAtOnce {
		write(t, filepath.Join(dir, strconv.Itoa(i)+".yaml"), "")
	}
	b := &bounds{root: dir, entries: maxEntries - entriesAtOnce}
	if items, err := readDir(b, dir); err == nil || b.entries > maxEntries+entriesAtOnce {
		t.Errorf("%d names of %d, error %v", len(items), b.entries, err)
	}
}

// TestIrregularFiles: a pipe, socket or device is neither opened nor waited for; a configured one is reported.
func TestIrregularFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	link(t, "/dev/zero", filepath.Join(dir, "zero.yaml"))
	write(t, filepath.Join(dir, "a.yaml"), ns("a", "1"))
	run(t, time.Hour, dir).wait("a=1")

	named := run(t, time.Hour, pipe)
	testkit.Eventually(t, patience, func() error {
		if err := named.src.Status().Degraded; err == nil || !strings.Contains(err.Error(), "not a regular file") {
			return fmt.Errorf("degraded: %w", err)
		}
		return nil
	})
	if _, err := readFile(pipe); err == nil {
		t.Error("a pipe was read")
	}
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func link(t *testing.T, to, name string) {
	t.Helper()
	if err := os.Symlink(to, name); err != nil {
		t.Fatal(err)
	}
}

// sparse makes a file of zeros that takes no disk space.
func sparse(t *testing.T, path string, size int64) {
	t.Helper()
	write(t, path, "")
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}
