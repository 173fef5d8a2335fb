// Package supervise runs child processes and keeps them running: restarts with backoff, logs to files, and an end that
// leaves nothing behind, in whatever way this process ends.
package supervise

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// spawner starts processes from one operating system thread that lives as long as it. The kernel sends a child its
// parent-death signal when the *thread* that made it ends (prctl(2), PR_SET_PDEATHSIG), and Go ends threads when it
// likes; so this one is locked.
type spawner struct {
	jobs chan func()
	done chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		// Never unlocked: when the goroutine returns, the thread ends with it, and any child left is killed.
		runtime.LockOSThread()
		for {
			select {
			case job := <-s.jobs:
				job()
			case <-s.done:
				return
			}
		}
	}()
	return s
}

var errClosed = errors.New("the supervisor is closed")

// start runs cmd. The child leads a process group of its own, so that a terminal's Ctrl-C reaches only this process,
// and is killed should this process die.
func (s *spawner) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	result := make(chan error, 1)
	select {
	case s.jobs <- func() { result <- cmd.Start() }:
		return <-result
	case <-s.done:
		return errClosed
	}
}

func (s *spawner) close() { close(s.done) }

// wait returns when cmd has ended, with everything else in its process group killed. The group is killed while the
// leader is still a zombie, because until it is reaped nobody else can have its id.
func wait(cmd *exec.Cmd) error {
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	killGroup(cmd.Process.Pid)
	return cmd.Wait()
}

// killGroup kills what is left of a process group.
func killGroup(pgid int) { _ = unix.Kill(-pgid, unix.SIGKILL) }

// openLog opens a log file for appending; only its owner may read it.
func openLog(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}
