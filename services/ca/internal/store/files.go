package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"fairlead.dev/pkg/dirlock"
	"fairlead.dev/pkg/fileio"
)

// maxFileBytes bounds what is read from the directory.
const maxFileBytes = 64 << 10

// ensureDir makes the directory, or refuses one that others can enter.
func ensureDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	switch {
	case err == nil:
		// Mkdir's mode is subject to the umask; say the mode again.
		return os.Chmod(dir, 0o700)
	case errors.Is(err, fs.ErrExist):
		return checkDir(dir)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("make %s: its parent directory does not exist; create it or correct --ca-dir", dir)
	default:
		return fmt.Errorf("make the ca's directory: %w", err)
	}
}

func checkDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s has mode %04o, so others than its owner could get at the root key; run: chmod 0700 %s", dir, info.Mode().Perm(),
			dir)
	}
	return checkOwner(dir, info)
}

func checkOwner(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d, but the ca runs as uid %d; run the ca as its owner, or: chown -R %d the ca's directory", path,
			stat.Uid, os.Geteuid(), os.Geteuid())
	}
	return nil
}

// readPrivate reads a regular file that only its owner can read.
func readPrivate(path string) ([]byte, error) {
	// Without O_NOFOLLOW a link could lead to a file whose mode is checked after it was opened elsewhere.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link; put the file itself there", path)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %04o, so others than its owner can get at it; run: chmod 0600 %s (and if that was not intended, "+
			"treat the key as known to others)", path, info.Mode().Perm(), path)
	}
	if err := checkOwner(path, info); err != nil {
		return nil, err
	}
	text, err := fileio.ReadAll(file, maxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}

// lock takes the lock of the ca's directory, and waits for another process that holds it, at most for the timeout.
func lock(ctx context.Context, path string, timeout time.Duration) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("%s is still held by another process after %s; stop the other process that uses this directory", path, timeout))
	defer cancel()
	for {
		held, err := dirlock.Acquire(path)
		if err == nil {
			return func() { _ = held.Release() }, nil
		}
		if _, inUse := errors.AsType[*dirlock.InUseError](err); !inUse {
			return nil, fmt.Errorf("lock the ca's directory: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
