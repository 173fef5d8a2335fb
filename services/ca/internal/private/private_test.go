package private

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestEnsureDir(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "keys")
	for range 2 {
		if err := EnsureDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := EnsureDir(filepath.Join(parent, "a", "b")); err == nil || !strings.Contains(err.Error(), "parent directory") {
		t.Errorf("got %v", err)
	}
	link := filepath.Join(parent, "link")
	if err := errors.Join(os.Chmod(dir, 0o710), os.Symlink(parent, link)); err != nil { //nolint:gosec // refused
		t.Fatal(err)
	}
	if err := EnsureDir(dir); err == nil || !strings.Contains(err.Error(), "run: chmod 0700 "+dir) {
		t.Errorf("got %v", err)
	}
	if err := EnsureDir(link); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("got %v", err)
	}
}

// Read is for files that the ca made, ReadMounted for those that it is given.
func TestFilesThatAreRead(t *testing.T) {
	dir := t.TempDir()
	file := func(path string, mode fs.FileMode) error {
		return errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, mode))
	}
	for name, tc := range map[string]struct {
		make          func(path string) error
		read, mounted string
	}{
		"private":         {func(p string) error { return file(p, 0o600) }, "", ""},
		"of a group":      {func(p string) error { return file(p, 0o440) }, "run: chmod 0600 ", ""},
		"of everybody":    {func(p string) error { return file(p, 0o604) }, "run: chmod 0600 ", "run: chmod o= "},
		"a link":          {func(p string) error { return errors.Join(file(p+".to", 0o600), os.Symlink(p+".to", p)) }, "symbolic link", ""},
		"a pipe":          {func(p string) error { return syscall.Mkfifo(p, 0o600) }, "not a regular file", "not a regular file"},
		"a directory":     {func(p string) error { return os.Mkdir(p, 0o700) }, "not a regular file", "not a regular file"},
		"too large":       {func(p string) error { return os.WriteFile(p, make([]byte, MaxFile+1), 0o600) }, "too large", "too large"},
		"of another user": {func(p string) error { return errors.Join(file(p, 0o600), os.Chown(p, 12345, -1)) }, "belongs to uid 12345", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			if err := tc.make(path); errors.Is(err, fs.ErrPermission) {
				t.Skip("only root gives files away")
			} else if err != nil {
				t.Fatal(err)
			}
			for _, r := range []struct {
				says string
				read func(string) ([]byte, error)
			}{{tc.read, Read}, {tc.mounted, ReadMounted}} {
				_, err := r.read(path)
				if (err == nil) != (r.says == "") || err != nil && (!strings.Contains(err.Error(), r.says) || !strings.Contains(err.Error(), path)) {
					t.Errorf("got %v, want %q", err, r.says)
				}
			}
		})
	}
	for _, read := range []func(string) ([]byte, error){Read, ReadMounted} {
		if _, err := read(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	}
}

func TestLockWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(t.Context(), path, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "still held") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Lock(ctx, path, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	unlock()
	if unlock, err = Lock(t.Context(), path, time.Second); err != nil {
		t.Fatal(err)
	}
	unlock()
}
