package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
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
		return fmt.Errorf("%s has mode %04o, so others than its owner could get at the root key; run: chmod 0700 %s", dir, info.Mode().Perm(), dir)
	}
	return checkOwner(dir, info)
}

func checkOwner(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d, but the ca runs as uid %d; run the ca as its owner, or: chown -R %d the ca's directory", path, stat.Uid, os.Geteuid(), os.Geteuid())
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
		return nil, fmt.Errorf("%s has mode %04o, so others than its owner can get at it; run: chmod 0600 %s (and if that was not intended, treat the key as known to others)", path, info.Mode().Perm(), path)
	}
	if err := checkOwner(path, info); err != nil {
		return nil, err
	}
	if info.Size() > maxFileBytes {
		return nil, fmt.Errorf("%s has %d bytes, the limit is %d", path, info.Size(), maxFileBytes)
	}
	text := make([]byte, info.Size())
	if _, err := file.ReadAt(text, 0); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}

// writeSynced writes a new file and waits until it is on disk.
func writeSynced(path string, data []byte, mode fs.FileMode) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Chmod(mode), file.Sync(), file.Close())
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// WriteAtomically replaces path by a file with the data and mode, so that a reader sees the old or the new content and a crash leaves one of the two.
func WriteAtomically(path string, data []byte, mode fs.FileMode) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(file.Name())))
	}
	return syncDir(filepath.Dir(path))
}

// lock takes the advisory lock of a file, which the kernel releases when the process ends, however it ends.
func lock(ctx context.Context, path string, timeout time.Duration) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the ca's directory: %w", err)
	}
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			// Closing releases the lock; the file stays, since removing it would let two processes lock two files of one name.
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		case <-deadline.C:
			return nil, errors.Join(fmt.Errorf("%s is still held by another process after %s; stop the other process that uses this directory", path, timeout), file.Close())
		case <-retry.C:
		}
	}
}
