package lastgood

import (
	"context"
	"errors"
	"io/fs"
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
)

func TestWritesBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	d := New(Config{Path: path, Log: testkit.Logger(t), Clock: clock.Real()})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	d.Put("a/b", []byte("1"))
	d.Put("c", []byte("1"))
	d.Put("a/b", []byte("2"))
	if content, _, err := d.Get("a/b"); err != nil || string(content) != "2" {
		t.Errorf("before it is written: %q %v", content, err)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if content, err := os.ReadFile(filepath.Join(path, "a", "b")); err != nil || string(content) != "2" {
			return errors.Join(err, errors.New(string(content)))
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// Flush at the end of the process writes the last changes.
	d.Remove("c")
	d.Put("d", []byte("3"))
	if err := d.Flush(); err != nil {
		t.Error(err)
	}
	again := New(Config{Path: path, Log: testkit.Logger(t), Clock: clock.Real()})
	if all, err := again.List(""); err != nil || strings.Join(all, " ") != "a/b d" {
		t.Errorf("%v %v", all, err)
	}
	if _, _, err := again.Get("c"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed: %v", err)
	}
	if info, err := os.Stat(filepath.Join(path, "a", "b")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

// TestUnwritableDirectory: changes that cannot be written stay pending, the newest of each file, and are written as
// soon as the directory can be.
func TestUnwritableDirectory(t *testing.T) {
	var full atomic.Bool
	var writes atomic.Int64
	d := New(Config{Path: t.TempDir(), Log: testkit.Logger(t), Clock: testkit.NewClock(time.Unix(1, 0)),
		FS: fileio.FS{Fault: func(step fileio.Step, _ string) error {
			if step == fileio.StepWrite {
				writes.Add(1)
				if full.Load() {
					return syscall.ENOSPC
				}
			}
			return nil
		}}})
	full.Store(true)
	d.Put("a", []byte("1"))
	for range 2 {
		if err := d.Flush(); !errors.Is(err, syscall.ENOSPC) || !errors.Is(d.Failure(), syscall.ENOSPC) {
			t.Errorf("got %v, %v", err, d.Failure())
		}
	}
	d.Put("a", []byte("2"))
	full.Store(false)
	if err := errors.Join(d.Flush(), d.Failure()); err != nil {
		t.Error(err)
	}
	if content, _, err := d.Get("a"); err != nil || string(content) != "2" {
		t.Errorf("%q %v", content, err)
	}
	before := writes.Load()
	d.Put("a", []byte("2"))
	if err := d.Flush(); err != nil || writes.Load() != before {
		t.Errorf("what is there already was written again: %v", err)
	}
}
