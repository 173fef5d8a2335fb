package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Program says what to run on a machine.
type Program struct {
	// Name is for people.
	Name string
	Path string
	Args []string
	// Env is added to the environment of the tests.
	Env []string
	// UID is also the group; 0 is root.
	UID int
	// Capabilities are kept although the program is not root.
	Capabilities []uintptr
	// Stdout and Stderr are files to append to.
	Stdout, Stderr string
	// ResolvConf is the file that the program finds as /etc/resolv.conf; empty for that of the machine.
	ResolvConf string
}

// Process is a program that runs.
type Process struct {
	Name string

	cmd    *exec.Cmd
	ended  chan struct{}
	err    error
	wanted atomic.Bool
}

// Start runs a program on the machine. The kernel kills it if the process of the tests dies.
func (h *Host) Start(p Program) (*Process, error) {
	process := &Process{Name: p.Name, ended: make(chan struct{})}
	stdout, err := appendTo(p.Stdout)
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	stderr, err := appendTo(p.Stderr)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	process.cmd = exec.Command(p.Path, p.Args...)
	process.cmd.Env = append(os.Environ(), p.Env...)
	process.cmd.Stdout, process.cmd.Stderr = stdout, stderr
	process.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true, AmbientCaps: p.Capabilities}
	if p.UID != 0 {
		process.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(p.UID), Gid: uint32(p.UID)}
	}
	started := make(chan error)
	go func() {
		// The child has the namespaces of this thread, and dies with it: the thread stays until then. It is never
		// unlocked.
		runtime.LockOSThread()
		err := h.enter()
		if err == nil && p.ResolvConf != "" {
			err = mountResolvConf(p.ResolvConf)
		}
		if err == nil {
			err = process.cmd.Start()
		}
		started <- err
		if err == nil {
			process.err = process.cmd.Wait()
			close(process.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	return process, nil
}

// appendTo opens a file so that also a program of another user can open it again by its descriptor.
func appendTo(path string) (*os.File, error) {
	if path == "" {
		path = os.DevNull
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err == nil && path != os.DevNull {
		err = f.Chmod(0o666)
	}
	return f, err
}

// mountResolvConf puts a file over /etc/resolv.conf for this thread and its children.
func mountResolvConf(file string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount /etc/resolv.conf: %w", err)
	}
	return nil
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Running tells whether it has not.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Err is how the process ended; it waits for that.
func (p *Process) Err() error {
	<-p.ended
	return p.err
}

// Died is how the process ended if nobody wanted that.
func (p *Process) Died() error {
	if p.Running() || p.wanted.Load() {
		return nil
	}
	if p.err != nil {
		return p.err
	}
	return errors.New("it ended by itself with status 0")
}

// Expect says that the process is going to end, and is meant to.
func (p *Process) Expect() { p.wanted.Store(true) }

// Stop asks the process to end, and kills it if it does not within a time. The error tells that it did not end well.
func (p *Process) Stop(within time.Duration) error {
	if !p.Running() {
		return p.Died()
	}
	p.Expect()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
	select {
	case <-p.ended:
	case <-time.After(within):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("%s did not end within %s of SIGTERM", p.Name, within)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.Name, p.err)
	}
	return nil
}

// Kill ends the process without giving it a chance.
func (p *Process) Kill() {
	p.Expect()
	_ = p.cmd.Process.Kill() // it may have ended just now
	<-p.ended
}

// Wait waits until the process has ended.
func (p *Process) Wait(within time.Duration) error {
	select {
	case <-p.ended:
		return nil
	case <-time.After(within):
		return fmt.Errorf("%s still runs after %s", p.Name, within)
	}
}

// Left lists the processes that run on machines, besides the tests' own.
func Left(hosts ...*Host) []string {
	of := map[string]*Host{}
	for _, h := range hosts {
		of[fmt.Sprintf("net:[%d]", h.inode)] = h
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []string{err.Error()}
	}
	var left []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		link, err := os.Readlink("/proc/" + e.Name() + "/ns/net")
		if h := of[link]; err == nil && h != nil {
			command, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			left = append(left, fmt.Sprintf("process %d on %s: %s", pid, h.Name, strings.ReplaceAll(string(command), "\x00", " ")))
		}
	}
	return left
}

// Children lists the processes that a process has started.
func Children(pid int) []int {
	var out []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is a good one
	for _, list := range lists {
		raw, _ := os.ReadFile(list) // a thread that is gone has none
		for _, f := range strings.Fields(string(raw)) {
			if child, err := strconv.Atoi(f); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}
