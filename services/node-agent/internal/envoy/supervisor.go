package envoy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/process"
)

// ExitEnvoy is the agent's exit code after Envoy ended by itself too often.
const ExitEnvoy = 4

// quitGrace is how long Envoy may take to end after each step of quit.
const quitGrace = 3 * time.Second

// Supervisor keeps one Envoy running, from its start to its end. Run is called once; DrainNow and SkipDrain are for the
// agent's status server, and safe for concurrent use.
type Supervisor struct {
	Options Options
	Admin   adminAPI
	Drain   DrainPolicy
	// IgnoreListeners are stat prefixes, see Drain.Ignore.
	IgnoreListeners []string
	// Gateway makes DrainNow drain all listeners, not only those for inbound connections.
	Gateway bool
	// MaxRestarts is how often Envoy is started again within restartWindow after it has ended by itself.
	MaxRestarts int
	// OOMKills counts the processes that the kernel has killed for memory; see package cgroup.
	OOMKills func() (kills uint64, known bool)
	Metrics  *Metrics
	// OnDrain is called when the drain begins, OnRestart before Envoy starts again.
	OnDrain, OnRestart func()
	Clock              clock.Clock
	Log                *slog.Logger

	drainOnce sync.Once
	// skipDrain means that Envoy ends without a drain once stop ends: the drain has begun already, or nobody waits.
	skipDrain atomic.Bool
}

// Run starts Envoy and waits for its end. When stop ends it drains Envoy and ends it; when ctx ends it ends Envoy at
// once. If Envoy ends by itself with an error, Run starts it again after a pause, and after MaxRestarts returns an
// error of exit code ExitEnvoy. If it ends with status 0, somebody asked it to quit through its admin interface, and
// Run returns nil.
func (s *Supervisor) Run(ctx, stop context.Context) error {
	var past crashes
	for {
		lost, err := s.runOnce(ctx, stop)
		if lost == "" {
			return err
		}
		s.Metrics.exits.WithLabelValues(string(lost)).Inc()
		pause, again := past.next(s.Clock.Now(), s.MaxRestarts)
		if !again || ctx.Err() != nil || stop.Err() != nil {
			return process.WithExitCode(err, ExitEnvoy)
		}
		s.Log.Error("Envoy is started again", "error", err, "reason", string(lost), "pause", pause, "restarts_left", s.MaxRestarts-len(past.at))
		if s.OnRestart != nil {
			s.OnRestart()
		}
		s.skipDrain.Store(false) // the next Envoy has not heard of DrainNow
		if !pauseBeforeRestart(ctx, stop, s.Clock, pause) {
			return nil
		}
		s.Metrics.restarts.Inc()
	}
}

// runOnce runs one Envoy. lost is why it ended by itself with an error, "" otherwise.
func (s *Supervisor) runOnce(ctx, stop context.Context) (lost Reason, err error) {
	kills, _ := s.OOMKills()
	began := s.Clock.Now()
	p, err := Start(s.Options)
	if err != nil {
		return "", err
	}
	s.Log.Info("Envoy started", "pid", p.PID(), "binary", s.Options.Binary)
	select {
	case err := <-p.Exited():
		return s.ended(err, began, kills)
	case <-ctx.Done():
		return "", s.quit(p)
	case <-stop.Done():
	}
	if s.skipDrain.Load() {
		s.Log.Info("Envoy ends without a drain")
		return "", s.quit(p)
	}
	s.beginDrain()
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
		return s.ended(err, began, kills)
	case <-drained:
	}
	return "", s.quit(p)
}

func (s *Supervisor) beginDrain() {
	s.drainOnce.Do(func() {
		if s.OnDrain != nil {
			s.OnDrain()
		}
	})
}

// SkipDrain makes Run end Envoy at once when stop ends. It is for this Envoy, not for one that is started after it.
func (s *Supervisor) SkipDrain() { s.skipDrain.Store(true) }

// DrainNow takes Envoy out of service while it goes on running, which a Pod with a native sidecar asks for in its
// preStop hook: its applications still run, need their outbound connections, and end before the proxy is told to. From
// then on readiness fails, and connections close as their requests end. When stop ends there is nothing left to wait
// for, unless Envoy could not be told, which is an error: then the drain is made up for.
func (s *Supervisor) DrainNow(ctx context.Context) error {
	s.beginDrain()
	path := "/drain_listeners?graceful&skip_exit"
	if !s.Gateway {
		path += "&inboundonly"
	}
	s.Log.Info("drain begins, the applications still run")
	if err := s.Admin.Post(ctx, path); err != nil {
		return err
	}
	s.SkipDrain()
	return nil
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

// ended explains an end of Envoy that the Supervisor did not ask for.
func (s *Supervisor) ended(err error, began time.Time, killsBefore uint64) (Reason, error) {
	ran := s.Clock.Now().Sub(began).Round(time.Millisecond)
	if err == nil {
		s.Log.Info("Envoy ended by request of its admin interface", "ran", ran)
		return "", nil
	}
	kills, known := s.OOMKills()
	lost := reasonOf(err, killsBefore, kills)
	text := reasonTexts[lost]
	if lost == Killed && !known {
		text = unknownKill
	}
	return lost, fmt.Errorf("lost Envoy after %s: %w: %s", ran, err, text)
}
