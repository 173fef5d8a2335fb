// Package process runs the programs under test: each writes a log, can be asked to end, killed and waited for, and ends
// at the latest with the process of the tests.
package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Program says what to run.
type Program struct {
	// Name is for people.
	Name string
	Path string
	Args []string
	// Env is added to the environment of the tests.
	Env []string
	// UID is also the group; 0 is the user of the tests.
	UID int
	// Capabilities are kept although the program is not root.
	Capabilities []uintptr
	// Stdout and Stderr are files to append to; empty: nothing is kept.
	Stdout, Stderr string
	// ResolvConf is the file that the program finds as /etc/resolv.conf; empty for that of the machine.
	ResolvConf string
	// Change edits the command before it starts, such as its working directory and its pipes; nil changes nothing.
	Change func(*exec.Cmd) error
}

// Process is a program that runs.
type Process struct {
	Name string

	log    string
	cmd    *exec.Cmd
	ended  chan struct{}
	err    error
	wanted atomic.Bool
}

// Start runs a program. Before, it calls enter on the thread whose namespaces and processors the program inherits; nil
// does nothing. The kernel kills the program if the process of the tests dies.
func Start(p Program, enter func() error) (*Process, error) {
	process := &Process{Name: p.Name, log: p.Stderr, ended: make(chan struct{})}
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
	cmd := exec.Command(p.Path, p.Args...)
	process.cmd = cmd
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true, AmbientCaps: p.Capabilities}
	if p.UID != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(p.UID), Gid: uint32(p.UID)}
	}
	if p.Change != nil {
		if err := p.Change(cmd); err != nil {
			return nil, fmt.Errorf("start %s: %w", p.Name, err)
		}
	}
	started := make(chan error)
	go func() {
		// The child has the namespaces of this thread, and dies with it: the thread stays until then. It is never
		// unlocked.
		runtime.LockOSThread()
		var err error
		if enter != nil {
			err = enter()
		}
		if err == nil && p.ResolvConf != "" {
			err = mountResolvConf(p.ResolvConf)
		}
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			process.err = cmd.Wait()
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
func (p *Process) Stop(within time.Duration) error { return p.StopBy(syscall.SIGTERM, within) }

// StopBy is Stop with another signal than SIGTERM.
func (p *Process) StopBy(signal syscall.Signal, within time.Duration) error {
	if !p.Running() {
		return p.Died()
	}
	p.Expect()
	_ = p.Signal(signal) // it may have ended just now
	if p.Wait(within) != nil {
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("%s did not end within %s of %s", p.Name, within, unix.SignalName(signal))
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.Name, p.err)
	}
	return nil
}

// Signal sends a signal.
func (p *Process) Signal(signal syscall.Signal) error { return p.cmd.Process.Signal(signal) }

// Kill ends the process without giving it a chance.
func (p *Process) Kill() {
	p.Expect()
	_ = p.cmd.Process.Kill() // it may have ended just now
	<-p.ended
}

// KillGroup ends what is left of the process and of those that it has started in its process group.
func (p *Process) KillGroup() {
	p.Expect()
	_ = unix.Kill(-p.PID(), unix.SIGKILL) // all may have ended
	<-p.ended
}

// Wait waits until the process has ended.
func (p *Process) Wait(within time.Duration) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
		return fmt.Errorf("%s still runs after %s", p.Name, within)
	}
}

// LogTail is the end of what the process has written to its Stderr, for an error message.
func (p *Process) LogTail() string { return Tail(p.log) }

// Tails are the ends of the logs that match a pattern, each below its name, for whoever sees only the output of the
// tests. Empty logs are left out.
func Tails(pattern string) string {
	var out strings.Builder
	logs, _ := filepath.Glob(pattern) // the pattern is a good one
	for _, log := range logs {
		if end := Tail(log); end != "" {
			fmt.Fprintf(&out, "--- %s ends with\n%s\n", log, end)
		}
	}
	return out.String()
}

// Tail is the end of a log.
func Tail(log string) string { return end(read(log), 3000) }

// Log is what the process has written to its Stderr.
func (p *Process) Log() string { return read(p.log) }

func read(log string) string {
	raw, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

func end(text string, limit int) string {
	return strings.TrimRight(text[max(0, len(text)-limit):], "\n")
}
