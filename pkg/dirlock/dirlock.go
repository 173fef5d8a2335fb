// Package dirlock locks a directory for one process, by a lock file in it: Acquire locks, Holder says which process has
// the lock. The kernel holds the lock (flock(2)) and releases it when the process ends, even by SIGKILL, so there is
// nothing to clean up.
package dirlock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// InUseError says that another process holds a lock.
type InUseError struct {
	// Path is the lock file.
	Path string
	// PID is the holder's process id; 0 if the file has none, because the holder has not written it yet.
	PID int
}

// Error implements error.
func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is locked by another process", e.Path)
	}
	return fmt.Sprintf("%s is locked by the process with pid %d", e.Path, e.PID)
}

// Lock is a lock that is held until Release, or until the process ends.
type Lock struct{ file *os.File }

// Acquire locks the file at path, creates it if necessary, and writes the process id into it. It does not wait: if
// another process, or another Lock of this process, holds the lock, the error is an *InUseError. The directory must
// exist.
func Acquire(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &InUseError{Path: path, PID: readPID(f)}
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// The process id only informs people, so a full disk is no reason to fail.
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return &Lock{file: f}, nil
}

// Release gives the lock up. It leaves the file in place: if it removed the file, two processes could lock two files of
// the same name. Releasing a nil Lock does nothing.
func (l *Lock) Release() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

// Holder returns the process id in a lock file that is locked now; 0 if no process holds it, or there is no such file.
func Holder(path string) (int, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return readPID(f), nil
	}
	return 0, err
}

// readPID reads a process id of at most 20 digits.
func readPID(f *os.File) int {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}
