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
	"fairlead.dev/proto/fairlead/runstate"
)

// InUseError says that another `fairlead up` uses the directory.
type InUseError struct {
	Dir string
	PID int
}

// Error implements error.
func (e *InUseError) Error() string {
	return fmt.Sprintf("run directory %s is in use by `fairlead up` with pid %d; stop it with `fairlead down --run-dir %s`, or choose "+
		"another --run-dir", e.Dir, e.PID, e.Dir)
}

// ErrForeign says that a directory is not empty and no run directory, so it is not cleaned.
var ErrForeign = errors.New("is not empty and is no run directory of fairlead; choose another --run-dir")

// Lock is the use of a run directory by one process, until Release or the end of the process.
type Lock struct {
	layout Layout
	held   *dirlock.Lock
}

// Acquire creates and locks the directory, kills the processes of a `fairlead up` that was killed, and removes its
// files.
func Acquire(l Layout) (*Lock, error) {
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("run directory: %w", foreign(l.Dir, err, os.Getuid()))
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
		return nil, fmt.Errorf("run directory: %w", foreign(l.Dir, err, os.Getuid()))
	}
	lock := &Lock{layout: l, held: held}
	if err := lock.prepare(); err != nil {
		return nil, errors.Join(err, held.Release())
	}
	return lock, nil
}

// checkForeign returns ErrForeign for a directory that is not a run directory.
func checkForeign(l Layout) error {
	entries, err := os.ReadDir(l.Dir)
	if err != nil {
		return fmt.Errorf("run directory: %w", foreign(l.Dir, err, os.Getuid()))
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

// prepare cleans up after an earlier run.
func (l *Lock) prepare() error {
	if s, err := runstate.Read(l.layout.Dir); err == nil {
		killLeftovers(s)
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

// removeFiles removes all files of the run directory except the lock.
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

// Release unlocks the directory. Logs and the last state stay for people to read; sockets outside the directory are
// removed.
func (l *Lock) Release() error {
	var err error
	if !strings.HasPrefix(l.layout.Sockets, l.layout.Dir) {
		err = os.RemoveAll(l.layout.Sockets)
	}
	return errors.Join(err, l.held.Release())
}

// Holder returns the pid of the `fairlead up` that uses the directory; 0 if none does.
func Holder(l Layout) (int, error) {
	pid, err := dirlock.Holder(l.Lock())
	if err != nil {
		return 0, fmt.Errorf("run directory: %w", foreign(l.Dir, err, os.Getuid()))
	}
	return pid, nil
}

// killLeftovers kills the processes in the state of a dead `fairlead up`, if their pids still belong to them.
func killLeftovers(s *runstate.State) {
	for _, p := range s.Processes() {
		if p.PID > 0 && p.Birth != "" && Birth(p.PID) == p.Birth {
			_ = unix.Kill(-p.PID, syscall.SIGKILL)
		}
	}
}

// Birth is when a process started, in clock ticks since boot; with the pid it identifies the process. It is empty if no
// such process runs.
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
