// Package envoy runs Envoy as a child process. Package app calls Supervisor.Run, which starts a Process, and drains
// (Drain) and ends it on SIGTERM; Envoy never outlives the agent. Admin is the client of Envoy's admin interface, and
// Validate checks a bootstrap with Envoy's validation mode.
package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options are how Envoy is started.
type Options struct {
	Binary string
	// Dir is Envoy's working directory, to which relative paths of sockets refer.
	Dir       string
	Bootstrap string
	// Concurrency is the number of worker threads.
	Concurrency uint32
	// DrainTime is the time over which a drain closes connections.
	DrainTime    time.Duration
	LogLevel     string
	ComponentLog string
	// FileFlush is how long Envoy may buffer an access log.
	FileFlush time.Duration
	// FileFlushKB is how much of an access log Envoy buffers; 0 is Envoy's default.
	FileFlushKB uint32
	// Override is JSON that Envoy merges over the bootstrap, "" for none. It is one of Envoy's arguments.
	Override string
	// SkipDeprecated keeps Envoy from warning of deprecated fields; CoreDump lets it leave a core dump. AnyFields
	// accepts fields in the bootstrap that this Envoy does not know.
	SkipDeprecated, CoreDump, AnyFields bool
	// NetAdmin gives Envoy CAP_NET_ADMIN, which TPROXY needs and the agent must have.
	NetAdmin bool
	// Stdout and Stderr get Envoy's output: its access log and its own log.
	Stdout, Stderr io.Writer
}

// Args are Envoy's arguments.
func (o Options) Args() []string {
	args := []string{
		"-c", o.Bootstrap,
		"--disable-hot-restart",
		"--concurrency", strconv.FormatUint(uint64(o.Concurrency), 10),
		"--drain-time-s", strconv.Itoa(int(o.DrainTime.Seconds())),
		"--drain-strategy", "immediate",
		"--log-level", o.LogLevel,
		"--file-flush-interval-msec", strconv.FormatInt(o.FileFlush.Milliseconds(), 10),
	}
	if o.FileFlushKB > 0 {
		args = append(args, "--file-flush-min-size-kb", strconv.FormatUint(uint64(o.FileFlushKB), 10))
	}
	if o.ComponentLog != "" {
		args = append(args, "--component-log-level", o.ComponentLog)
	}
	if o.Override != "" {
		args = append(args, "--config-yaml", o.Override)
	}
	for _, f := range []struct {
		on   bool
		flag string
	}{{o.AnyFields, "--allow-unknown-static-fields"}, {o.CoreDump, "--enable-core-dump"}, {o.SkipDeprecated, "--skip-deprecated-logs"}} {
		if f.on {
			args = append(args, f.flag)
		}
	}
	return args
}

// Process is a started Envoy.
type Process struct {
	cmd    *exec.Cmd
	exited chan error
}

// Start starts Envoy. The kernel kills it when the agent dies for any reason. A terminal's Ctrl-C does not reach it, so
// that it can drain.
func Start(o Options) (*Process, error) {
	p := &Process{exited: make(chan error, 1)}
	started := make(chan error)
	go func() {
		// The parent for PR_SET_PDEATHSIG is this thread, which must live as long as Envoy.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		// No context: the Supervisor decides when and how Envoy ends.
		p.cmd = exec.CommandContext(context.Background(), o.Binary, o.Args()...)
		p.cmd.Dir = o.Dir
		p.cmd.Stdout, p.cmd.Stderr = o.Stdout, o.Stderr
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		if o.NetAdmin {
			p.cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN}
		}
		if err := p.cmd.Start(); err != nil {
			started <- fmt.Errorf("start Envoy: %w", err)
			return
		}
		started <- nil
		p.exited <- p.cmd.Wait()
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited receives once, when Envoy has ended: nil if it ended with status 0.
func (p *Process) Exited() <-chan error { return p.exited }

// Kill sends SIGKILL; it is no error if Envoy has ended.
func (p *Process) Kill() error {
	err := p.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Terminate sends SIGTERM, after which Envoy aborts its requests; it is no error if Envoy has ended.
func (p *Process) Terminate() error {
	err := p.cmd.Process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// ErrNoNetAdmin is returned by MayAdministerNetwork if the agent lacks the capability.
var ErrNoNetAdmin = errors.New(
	"TPROXY needs the capability NET_ADMIN, which the agent does not have: run it as root, or as its user with the capability " +
		"among its inheritable and ambient ones")

// MayAdministerNetwork checks that this process has CAP_NET_ADMIN, for Options.NetAdmin.
func MayAdministerNetwork() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("capabilities of the agent: %w", err)
	}
	if sets[0].Permitted&(1<<unix.CAP_NET_ADMIN) == 0 {
		return ErrNoNetAdmin
	}
	return nil
}
