// Package supervise runs child processes and restarts them with back-off, like a kubelet. Supervisor.Start keeps a
// program running with its output in a log file, Process.Stop ends it with its process group. However this process
// ends, SIGKILL included, its children end too. Package local runs a mesh's processes with it.
package supervise

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// spawner starts processes from one operating system thread. The kernel sends a child its parent-death signal when the
// thread that started it ends (prctl(2), PR_SET_PDEATHSIG), and Go may end any thread that no goroutine is locked to.
type spawner struct {
	jobs chan func()
	done chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		// It is never unlocked: when the goroutine returns, the thread ends, and the kernel kills the children.
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

// start starts cmd as the leader of a process group, so that a terminal's Ctrl-C does not reach it, and with SIGKILL as
// its parent-death signal.
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

// wait returns after cmd has ended and the rest of its process group is killed. The group is killed while its leader is
// a zombie: until that is reaped, no other group can get the same id.
func wait(cmd *exec.Cmd) error {
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	killGroup(cmd.Process.Pid)
	if err := cmd.Wait(); !errors.Is(err, exec.ErrWaitDelay) {
		return err
	}
	return nil
}

// killGroup kills a process group.
func killGroup(pgid int) { _ = unix.Kill(-pgid, unix.SIGKILL) }

// openLog opens a log file for appending; only its owner may read it.
func openLog(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}
