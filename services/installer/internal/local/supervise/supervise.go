package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"fairlead.dev/pkg/clock"
)

// Spec is a program to run.
type Spec struct {
	Name string
	Path string
	Args []string
	Env  []string
	// Dir is the working directory; empty means this process's.
	Dir string
	// Log is the file to which its output is appended.
	Log string
	// Stamped passes the output through a pipe: each line gets the time before it, and the program does not notice a
	// disk that is full.
	Stamped bool
	// Grace is how long it may take to end after SIGTERM before it is killed.
	Grace time.Duration
}

// Status is a process's state.
type Status struct {
	Name string
	// PID is 0 while it does not run.
	PID int
	// StartedAt is when the process that runs, or ran last, was started.
	StartedAt time.Time
	// Restarts counts the restarts.
	Restarts int
	// Exit says how it last ended, as "exit status 1"; empty if it has not.
	Exit string
	// ExitCode is its last exit code; -1 if a signal ended it or it could not be started.
	ExitCode int
	// Lived is how long the process that ended last has run; 0 if none has.
	Lived time.Duration
	// Stopped is true after Stop has ended it.
	Stopped bool
}

// Config of a Supervisor.
type Config struct {
	Clock clock.Clock
	Log   *slog.Logger
	// Changed is called with every new status, one call at a time per process. It must not block, and must not call
	// Stop.
	Changed func(Status)
	// MinBackoff and MaxBackoff bound the back-off before a restart. It doubles with each restart, and begins anew
	// after the process has run for StableAfter.
	MinBackoff, MaxBackoff, StableAfter time.Duration
}

// Supervisor runs processes. Its methods are safe for concurrent use.
type Supervisor struct {
	cfg   Config
	spawn *spawner
}

// New returns a supervisor. Call Close after all processes are stopped.
func New(cfg Config) *Supervisor {
	cfg.Clock = clock.Or(cfg.Clock)
	cfg.MinBackoff = cmp.Or(cfg.MinBackoff, 250*time.Millisecond)
	cfg.MaxBackoff = cmp.Or(cfg.MaxBackoff, 10*time.Second)
	cfg.StableAfter = cmp.Or(cfg.StableAfter, 10*time.Second)
	if cfg.Changed == nil {
		cfg.Changed = func(Status) {}
	}
	return &Supervisor{cfg: cfg, spawn: newSpawner()}
}

// Close kills the processes that still run.
func (s *Supervisor) Close() { s.spawn.close() }

// Process is a program that a Supervisor keeps running.
type Process struct {
	sup  *Supervisor
	spec Spec
	// stop is closed by Stop; gone is closed when the process has ended and is not restarted.
	stop, gone chan struct{}
	stopOnce   sync.Once

	mu     sync.Mutex
	status Status
	proc   *os.Process // nil while it does not run
}

// Start runs the program until Stop. If it cannot be started, its status says why, and it is tried again with back-off.
func (s *Supervisor) Start(spec Spec) *Process {
	p := &Process{
		sup: s, spec: spec,
		stop: make(chan struct{}), gone: make(chan struct{}),
		status: Status{Name: spec.Name},
	}
	go p.run()
	return p
}

// Status returns the current status.
func (p *Process) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// ErrNotRunning is Signal's error while the process does not run.
var ErrNotRunning = errors.New("process is not running")

// Signal sends a signal to the process.
func (p *Process) Signal(sig os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil {
		return ErrNotRunning
	}
	return p.proc.Signal(sig)
}

// Stop sends SIGTERM, and SIGKILL after the grace period or at the end of ctx. It returns when the process and its
// process group have ended, and may be called more than once.
func (p *Process) Stop(ctx context.Context) {
	p.stopOnce.Do(func() { close(p.stop) })
	_ = p.Signal(syscall.SIGTERM)
	timer := p.sup.cfg.Clock.NewTimer(p.spec.Grace)
	defer timer.Stop()
	select {
	case <-p.gone:
		return
	case <-timer.C():
		p.sup.cfg.Log.Warn("process did not stop in time and is killed", "process", p.spec.Name, "grace", p.spec.Grace)
	case <-ctx.Done():
	}
	_ = p.Signal(syscall.SIGKILL)
	<-p.gone
}

// run starts the program again and again until Stop.
func (p *Process) run() {
	defer close(p.gone)
	cfg := p.sup.cfg
	backoff := cfg.MinBackoff
	for {
		started := cfg.Clock.Now()
		err := p.runOnce()
		if p.stopping() {
			p.update(func(s *Status) { s.Stopped = true })
			return
		}
		if cfg.Clock.Now().Sub(started) >= cfg.StableAfter {
			backoff = cfg.MinBackoff
		}
		cfg.Log.Warn("process ended and is started again", "process", p.spec.Name, "error", err, "in", backoff)
		select {
		case <-p.stop:
			p.update(func(s *Status) { s.Stopped = true })
			return
		case <-cfg.Clock.After(backoff):
		}
		backoff = min(2*backoff, cfg.MaxBackoff)
		p.mu.Lock()
		p.status.Restarts++
		p.mu.Unlock()
	}
}

func (p *Process) stopping() bool {
	select {
	case <-p.stop:
		return true
	default:
		return false
	}
}

// runOnce runs the program until it ends.
func (p *Process) runOnce() error {
	cmd, log, err := p.start()
	if err == nil {
		defer log.Close()
		if p.stopping() {
			// Stop was called before there was a process to signal.
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
		err = wait(cmd)
	}
	p.update(func(s *Status) {
		p.proc = nil
		s.Lived = 0
		if s.PID != 0 {
			s.Lived = p.sup.cfg.Clock.Now().Sub(s.StartedAt)
		}
		s.PID = 0
		s.Exit, s.ExitCode = "exit status 0", 0
		if err != nil {
			s.Exit, s.ExitCode = err.Error(), -1
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				s.ExitCode = exit.ExitCode()
			}
		}
	})
	if err == nil {
		return errors.New("it ended by itself, with exit status 0")
	}
	return err
}

// start starts the program; the caller closes the log when it has ended.
func (p *Process) start() (*exec.Cmd, *os.File, error) {
	log, err := openLog(p.spec.Log)
	if err != nil {
		return nil, nil, fmt.Errorf("log file: %w", err)
	}
	cmd := exec.Command(p.spec.Path, p.spec.Args...)
	cmd.Env, cmd.Dir = p.spec.Env, p.spec.Dir
	cmd.Stdout, cmd.Stderr = log, log
	if p.spec.Stamped {
		out := &stampedLog{file: log, clock: p.sup.cfg.Clock}
		cmd.Stdout, cmd.Stderr = out, out
		cmd.WaitDelay = pipeDelay
	}
	if err := p.sup.spawn.start(cmd); err != nil {
		_ = log.Close()
		return nil, nil, err
	}
	p.update(func(s *Status) {
		p.proc = cmd.Process
		s.PID = cmd.Process.Pid
		s.StartedAt = p.sup.cfg.Clock.Now()
	})
	return cmd, log, nil
}

// update changes the status and calls Changed.
func (p *Process) update(change func(*Status)) {
	p.mu.Lock()
	change(&p.status)
	status := p.status
	p.mu.Unlock()
	p.sup.cfg.Changed(status)
}
