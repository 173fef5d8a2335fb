package supervise

import (
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

// Spec is a program to keep running.
type Spec struct {
	Name string
	Path string
	Args []string
	Env  []string
	// Dir is the working directory; empty means this process's.
	Dir string
	// Log is the file that its output is appended to.
	Log string
	// Grace is how long it may take to end after SIGTERM before it is killed.
	Grace time.Duration
}

// Status is what a process is at.
type Status struct {
	Name string
	// PID is 0 while it does not run.
	PID int
	// StartedAt is when the running process was started.
	StartedAt time.Time
	// Restarts counts how often it was started again.
	Restarts int
	// Exit says how it last ended, "exit status 1"; empty if it never did.
	Exit string
	// ExitCode of the last end; -1 if a signal ended it or it could not be started.
	ExitCode int
	// Lived is how long the process ran that ended last; 0 if none has ended, or could not be started.
	Lived time.Duration
	// Stopped is true once it was asked to stop and is gone.
	Stopped bool
}

// Config of a Supervisor.
type Config struct {
	Clock clock.Clock
	Log   *slog.Logger
	// Changed is told of every start and end, one after the other per process. It must not block for long, and must not
	// call Stop.
	Changed func(Status)
	// MinBackoff and MaxBackoff bound the wait before a restart; it doubles with each, and starts anew once a process
	// ran for StableAfter.
	MinBackoff, MaxBackoff, StableAfter time.Duration
}

// Supervisor keeps processes running. Its methods are safe for concurrent use.
type Supervisor struct {
	cfg   Config
	spawn *spawner
}

// New makes a supervisor. Close it when every process was stopped.
func New(cfg Config) *Supervisor {
	cfg.Clock = clock.Or(cfg.Clock)
	if cfg.MinBackoff == 0 {
		cfg.MinBackoff = 250 * time.Millisecond
	}
	if cfg.MaxBackoff == 0 {
		cfg.MaxBackoff = 10 * time.Second
	}
	if cfg.StableAfter == 0 {
		cfg.StableAfter = 10 * time.Second
	}
	if cfg.Changed == nil {
		cfg.Changed = func(Status) {}
	}
	return &Supervisor{cfg: cfg, spawn: newSpawner()}
}

// Close ends the supervisor. Processes that still run are killed.
func (s *Supervisor) Close() { s.spawn.close() }

// Process is one kept program.
type Process struct {
	sup  *Supervisor
	spec Spec
	// stop is closed when the process shall end; gone when it has ended for good.
	stop, gone chan struct{}
	stopOnce   sync.Once

	mu     sync.Mutex
	status Status
	proc   *os.Process // nil while it does not run
}

// Start runs the program and keeps it running. That it cannot be started shows in its status, and is tried again.
func (s *Supervisor) Start(spec Spec) *Process {
	p := &Process{
		sup: s, spec: spec,
		stop: make(chan struct{}), gone: make(chan struct{}),
		status: Status{Name: spec.Name},
	}
	go p.run()
	return p
}

// Status of the process now.
func (p *Process) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// ErrNotRunning is returned where a running process is needed.
var ErrNotRunning = errors.New("process is not running")

// Signal sends a signal to the running process.
func (p *Process) Signal(sig os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil {
		return ErrNotRunning
	}
	return p.proc.Signal(sig)
}

// Stop asks the process to end, kills it after its grace period or when ctx ends, and returns when it and its process
// group are gone. It may be called more than once.
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

// run starts the program over and over until it is stopped.
func (p *Process) run() {
	defer close(p.gone)
	cfg := p.sup.cfg
	backoff := cfg.MinBackoff
	for {
		started := cfg.Clock.Now()
		err := p.once()
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

// once runs the program to its end.
func (p *Process) once() error {
	cmd, err := p.start()
	if err == nil {
		if p.stopping() {
			// Stop may have looked for a process before there was one.
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
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				s.ExitCode = exit.ExitCode()
			}
		}
	})
	if err == nil {
		return errors.New("it ended by itself, with exit status 0")
	}
	return err
}

func (p *Process) start() (*exec.Cmd, error) {
	log, err := openLog(p.spec.Log)
	if err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(p.spec.Path, p.spec.Args...)
	cmd.Env, cmd.Dir = p.spec.Env, p.spec.Dir
	cmd.Stdout, cmd.Stderr = log, log
	if err := p.sup.spawn.start(cmd); err != nil {
		return nil, err
	}
	p.update(func(s *Status) {
		p.proc = cmd.Process
		s.PID = cmd.Process.Pid
		s.StartedAt = p.sup.cfg.Clock.Now()
	})
	return cmd, nil
}

// update changes the status and tells of it.
func (p *Process) update(change func(*Status)) {
	p.mu.Lock()
	change(&p.status)
	status := p.status
	p.mu.Unlock()
	p.sup.cfg.Changed(status)
}
