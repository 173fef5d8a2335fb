package envoy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"syscall"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/process"
)

// ExitEnvoy is the agent's exit code after Envoy ended by itself with an error.
const ExitEnvoy = 4

// quitGrace is how long Envoy may take to end after each step of quit.
const quitGrace = 3 * time.Second

// Supervisor runs one Envoy from start to end.
type Supervisor struct {
	Options Options
	Admin   *Admin
	Drain   DrainPolicy
	// IgnoreListeners are stat prefixes, see Drain.Ignore.
	IgnoreListeners []string
	// OnDrain is called when the drain begins.
	OnDrain func()
	Clock   clock.Clock
	Log     *slog.Logger
}

// Run starts Envoy and waits for its end. When stop ends it drains Envoy and ends it; when ctx ends it ends Envoy at
// once. If Envoy ends by itself with an error, Run returns an error of exit code ExitEnvoy. If it ends with status 0,
// somebody asked it to quit through its admin interface, and Run returns nil.
func (s *Supervisor) Run(ctx, stop context.Context) error {
	began := s.Clock.Now()
	p, err := Start(s.Options)
	if err != nil {
		return err
	}
	s.Log.Info("Envoy started", "pid", p.PID(), "binary", s.Options.Binary)
	select {
	case err := <-p.Exited():
		return s.ended(err, began)
	case <-ctx.Done():
		return s.quit(p)
	case <-stop.Done():
	}
	if s.OnDrain != nil {
		s.OnDrain()
	}
	drained := make(chan struct{})
	dctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(drained)
		d := &Drain{Admin: s.Admin, Policy: s.Drain, Ignore: s.IgnoreListeners, Clock: s.Clock, Log: s.Log}
		d.Run(dctx)
	}()
	select {
	case err := <-p.Exited():
		cancel()
		<-drained
		return s.ended(err, began)
	case <-drained:
	}
	return s.quit(p)
}

// quit ends Envoy by its admin interface, else by SIGTERM, else by SIGKILL.
func (s *Supervisor) quit(p *Process) error {
	for _, end := range []struct {
		how string
		do  func() error
	}{
		{"quitquitquit", func() error {
			ctx, cancel := context.WithTimeout(context.Background(), quitGrace)
			defer cancel()
			return s.Admin.Post(ctx, "/quitquitquit")
		}},
		{"SIGTERM", p.Terminate},
		{"SIGKILL", p.Kill},
	} {
		if err := end.do(); err != nil {
			s.Log.Debug("ending Envoy failed", "how", end.how, "error", err)
			if end.how == "quitquitquit" {
				continue // Envoy was not reached, so do not wait for it
			}
		}
		select {
		case err := <-p.Exited():
			s.Log.Info("Envoy ended", "how", end.how, "error", err)
			return nil
		case <-s.Clock.After(quitGrace):
			s.Log.Warn("Envoy does not end", "how", end.how)
		}
	}
	return errors.New("could not end Envoy")
}

// ended logs or explains an end of Envoy that the Supervisor did not ask for.
func (s *Supervisor) ended(err error, began time.Time) error {
	ran := s.Clock.Now().Sub(began).Round(time.Millisecond)
	if err == nil {
		s.Log.Info("Envoy ended by request of its admin interface", "ran", ran)
		return nil
	}
	cause := err.Error()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL {
			cause += " (out of memory, or killed by hand)"
		}
	}
	return process.WithExitCode(fmt.Errorf("lost Envoy after %s: %s; its log above has the reason", ran, cause), ExitEnvoy)
}
