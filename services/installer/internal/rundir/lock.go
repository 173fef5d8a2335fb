package rundir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/dirlock"
)

// InUseError says that another `fairlead up` runs on the directory.
type InUseError struct {
	Dir string
	PID int
}

// Error implements error.
func (e *InUseError) Error() string {
	return fmt.Sprintf("run directory %s is in use by `fairlead up` with pid %d; stop it with `fairlead down --run-dir %s`, or choose another --run-dir", e.Dir, e.PID, e.Dir)
}

// ErrForeign says that a directory holds something else than a run.
var ErrForeign = errors.New("is not empty and is no run directory of fairlead; choose another --run-dir")

// Lock is the right to use a run directory. It ends with Release, or with the process.
type Lock struct {
	layout Layout
	held   *dirlock.Lock
}

// Acquire takes the directory into use: makes it, locks it, kills what a dead run left running, and removes that run's files.
func Acquire(l Layout) (*Lock, error) {
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	if err := checkForeign(l); err != nil {
		return nil, err
	}
	held, err := dirlock.Acquire(l.Lock())
	var inUse *dirlock.InUseError
	switch {
	case errors.As(err, &inUse):
		return nil, &InUseError{Dir: l.Dir, PID: inUse.PID}
	case err != nil:
		return nil, fmt.Errorf("run directory: %w", err)
	}
	lock := &Lock{layout: l, held: held}
	if err := lock.prepare(); err != nil {
		return nil, errors.Join(err, held.Release())
	}
	return lock, nil
}

// checkForeign refuses to clean a directory that is not ours.
func checkForeign(l Layout) error {
	entries, err := os.ReadDir(l.Dir)
	if err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	for _, e := range entries {
		if e.Name() == filepath.Base(l.Lock()) {
			return nil
		}
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s %w", l.Dir, ErrForeign)
	}
	return nil
}

// prepare cleans up after a dead run.
func (l *Lock) prepare() error {
	if s, err := Read(l.layout.Dir); err == nil {
		s.killLeftovers()
	}
	if err := l.removeFiles(); err != nil {
		return fmt.Errorf("clean %s after an earlier run: %w", l.layout.Dir, err)
	}
	for _, dir := range []string{l.layout.Dir, l.layout.Sockets} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
	}
	return nil
}

// removeFiles removes everything of a run except the lock.
func (l *Lock) removeFiles() error {
	entries, err := os.ReadDir(l.layout.Dir)
	if err != nil {
		return err
	}
	errs := []error{os.RemoveAll(l.layout.Sockets)}
	for _, e := range entries {
		if e.Name() != filepath.Base(l.layout.Lock()) {
			errs = append(errs, os.RemoveAll(filepath.Join(l.layout.Dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Release ends the use of the directory. Logs and the last state stay for the reader; sockets outside the directory are removed.
func (l *Lock) Release() error {
	var err error
	if !strings.HasPrefix(l.layout.Sockets, l.layout.Dir) {
		err = os.RemoveAll(l.layout.Sockets)
	}
	return errors.Join(err, l.held.Release())
}

// Holder is the pid of the `fairlead up` that runs on the directory; 0 if none does.
func Holder(l Layout) (int, error) {
	pid, err := dirlock.Holder(l.Lock())
	if err != nil {
		return 0, fmt.Errorf("run directory: %w", err)
	}
	return pid, nil
}

// killLeftovers kills the processes of a run whose `fairlead up` is dead, if they are still the ones that it started.
func (s *State) killLeftovers() {
	for _, p := range s.Processes() {
		if p.PID > 0 && p.Birth != "" && Birth(p.PID) == p.Birth {
			_ = unix.Kill(-p.PID, syscall.SIGKILL)
		}
	}
}

// Birth identifies a process beyond its pid: when it began, in clock ticks since boot. Empty if no such process runs.
func Birth(pid int) string {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return ""
	}
	stat, err := process.Stat()
	// A zombie has ended; only its parent has not noticed yet.
	if err != nil || stat.State == "Z" || stat.State == "X" {
		return ""
	}
	return strconv.FormatUint(stat.Starttime, 10)
}
