package local

import (
	"context"
	"time"

	"fairlead.dev/services/installer/internal/plan"
	"fairlead.dev/services/installer/internal/probe"
)

// eager is how often a process is probed until it is ready for the first time: a mesh on one machine shall not wait for a probe's period.
const eager = 100 * time.Millisecond

// watchReady probes a process for as long as it is kept running. Without a probe it is ready when it runs.
func (n *Node) watchReady(ctx context.Context, name string, p *plan.Probe) {
	pid := 0
	var count *probe.Counter
	was := false
	for ctx.Err() == nil {
		changed := n.board.Changed()
		e := n.board.get(name)
		if e.PID == 0 {
			pid = 0
			waitFor(ctx, changed)
			continue
		}
		if e.PID != pid {
			pid, was = e.PID, false
			if p == nil {
				n.board.probed(name, pid, true, "")
				continue
			}
			count = probe.NewCounter(p)
			n.waitWhile(ctx, name, pid, p.InitialDelay)
			continue
		}
		if p == nil {
			waitFor(ctx, changed)
			continue
		}
		err := probe.Once(ctx, p)
		if ctx.Err() != nil {
			return
		}
		ready := count.Add(err == nil)
		reason := ""
		if !ready && err != nil {
			reason = "not ready: " + err.Error()
		}
		n.board.probed(name, pid, ready, reason)
		was = was || ready
		interval := p.Period
		if !was {
			interval = min(interval, eager)
		}
		n.waitWhile(ctx, name, pid, interval)
	}
}

// waitWhile waits for a time, but no longer than the process keeps its pid.
func (n *Node) waitWhile(ctx context.Context, name string, pid int, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := n.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	for {
		changed := n.board.Changed()
		if n.board.get(name).PID != pid {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
			return
		case <-changed:
		}
	}
}

// waitFor waits for a change or the end of ctx.
func waitFor(ctx context.Context, changed <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-changed:
	}
}

// wait waits for a time; false if ctx ended first.
func (n *Node) wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-n.cfg.Clock.After(d):
		return true
	}
}

// The probes of Fairlead's own processes.
func serviceProbe(s *plan.Service) *plan.Probe {
	return &plan.Probe{
		URL:    "http://" + s.Ops.String() + "/readyz",
		Period: 2 * time.Second, Timeout: time.Second, SuccessThreshold: 1, FailureThreshold: 2,
	}
}

// A proxy that drains must be out of its callers' endpoints before it goes, so it is asked often.
func agentProbe(a *plan.Agent) *plan.Probe {
	return &plan.Probe{
		URL:    "http://" + a.Ready.String() + "/healthz/ready",
		Period: 400 * time.Millisecond, Timeout: time.Second, SuccessThreshold: 1, FailureThreshold: 2,
	}
}
