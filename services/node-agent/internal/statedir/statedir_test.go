package statedir

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

func open(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestDirectoryIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	d := open(t, path)
	if err := d.Write("file", []byte("x")); err != nil {
		t.Fatal(err)
	}
	lis, err := d.Listen("S")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	for name, want := range map[string]fs.FileMode{"": 0o700, "file": 0o600, "S": 0o600} {
		if info, err := os.Stat(d.Path(name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v %v, want mode %o", name, info, err, want)
		}
	}
}

func TestSecondAgentIsRejected(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	first := open(t, path)
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("second agent: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, path)
}

// A socket works whatever the length of its path, replaces one that a killed agent left, and is removed when closed.
func TestSockets(t *testing.T) {
	short, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	for _, tc := range []struct {
		name, path string
		absolute   bool
	}{
		{"short", short, true},
		{"long", filepath.Join(t.TempDir(), strings.Repeat("x", 120)), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := open(t, tc.path)
			if got := d.EnvoyPath("S"); filepath.IsAbs(got) != tc.absolute {
				t.Errorf("Envoy's path is %q", got)
			}
			left, err := d.Listen("S")
			if err != nil {
				t.Fatal(err)
			}
			left.UnixListener.Close() // as if killed: the file stays
			if _, err := os.Lstat(d.Path("S")); err != nil {
				t.Fatal(err)
			}
			lis, err := d.Listen("S")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			conn, err := Dial(ctx, d.Path("S"))
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			if err := lis.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(d.Path("S")); !os.IsNotExist(err) {
				t.Errorf("socket after Close: %v", err)
			}
		})
	}
}

func TestListenKeepsFilesThatAreNoSockets(t *testing.T) {
	d := open(t, filepath.Join(t.TempDir(), "state"))
	if err := d.Write("S", []byte("precious")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Listen("S"); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("got %v", err)
	}
}
