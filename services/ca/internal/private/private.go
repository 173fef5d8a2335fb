// Package private reads, makes and locks directories and files that nobody but the ca's user can use; keys are in such
// ones. Its errors name the path and the command that repairs it.
package private

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"fairlead.dev/pkg/dirlock"
	"fairlead.dev/pkg/fileio"
)

// MaxFile bounds what Read reads, in bytes.
const MaxFile = 64 << 10

// EnsureDir makes the directory with mode 0700, or returns CheckDir's error about one that is there. The parent must
// exist.
func EnsureDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	switch {
	case err == nil:
		// Mkdir's mode is subject to the umask; say the mode again.
		return os.Chmod(dir, 0o700)
	case errors.Is(err, fs.ErrExist):
		return CheckDir(dir)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("make %s: its parent directory does not exist; create it, or correct the path", dir)
	default:
		return fmt.Errorf("make the private directory: %w", err)
	}
}

// CheckDir returns an error if others than the ca's user could get into the directory.
func CheckDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s has mode %04o, so others than its owner could get at the keys in it; run: chmod 0700 %s", dir, info.Mode().Perm(),
			dir)
	}
	return checkOwner(dir, info)
}

func checkOwner(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d, but the ca runs as uid %d; run the ca as its owner, or: chown -R %d the directory", path,
			stat.Uid, os.Geteuid(), os.Geteuid())
	}
	return nil
}

// Read reads a regular file of at most MaxFile bytes that only the ca's user can read; it follows no symbolic link.
func Read(path string) ([]byte, error) {
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
	text, err := fileio.ReadAll(file, MaxFile)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}

// Lock locks the file at path, which it makes if necessary. It waits for another process, or another Lock of this one,
// that holds it, at most for the timeout. unlock leaves the file in place.
func Lock(ctx context.Context, path string, timeout time.Duration) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("%s is still held by another process after %s; stop the other process that uses this directory", path, timeout))
	defer cancel()
	for {
		held, err := dirlock.Acquire(path)
		if err == nil {
			return func() { _ = held.Release() }, nil
		}
		if _, inUse := errors.AsType[*dirlock.InUseError](err); !inUse {
			return nil, fmt.Errorf("lock the private directory: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// heldName is the file that the process locks which has a directory for itself.
const heldName = "in-use.lock"

// Hold gives the directory to this process alone until release is called, or the process ends. It is an error if
// another process has it.
func Hold(dir string) (release func(), err error) {
	held, err := dirlock.Acquire(filepath.Join(dir, heldName))
	if other, inUse := errors.AsType[*dirlock.InUseError](err); inUse {
		return nil, fmt.Errorf("%s is in use by a ca, or by the restoring of one, that runs as process %d; stop that first: two would write "+
			"over each other's state", dir, other.PID)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the private directory: %w", err)
	}
	return func() { _ = held.Release() }, nil
}

// ReadMounted reads a regular file of at most MaxFile bytes that somebody else gives the ca, such as a file of a Secret
// volume: it may be a link, and of another owner and group, but not be open to everybody.
func ReadMounted(path string) ([]byte, error) {
	file, err := fileio.OpenRegular(path)
	if errors.Is(err, fileio.ErrNotRegular) {
		return nil, fmt.Errorf("%s is %w", path, err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("%s has mode %04o, so everybody on this machine can get at it; run: chmod o= %s, or set defaultMode: 0440 and "+
			"fsGroup for a Secret volume (and if that was not intended, change the secret)", path, info.Mode().Perm(), path)
	}
	text, err := fileio.ReadAll(file, MaxFile)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}
