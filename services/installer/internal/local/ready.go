package local

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/ports"
	"fairlead.dev/services/installer/internal/local/probe"
)

// eager is how often a process is probed until it is ready for the first time: a mesh on one machine shall not wait for
// a probe's period.
const eager = 100 * time.Millisecond

// Times that an application has to run before it counts as ready.
const (
	// settle is for one that nobody can ask: a program that ends at once was never ready.
	settle = time.Second
	// steady is for one that keeps ending sooner than that.
	steady = 10 * time.Second
)

// watchContainer watches an application's process until ctx ends. Unlike one of Fairlead's own processes, it may ignore
// the port that it was given, or end again and again.
func (n *Node) watchContainer(ctx context.Context, c plan.Container) {
	pid := 0
	for ctx.Err() == nil {
		changed := n.board.Changed()
		e := n.board.get(c.Name)
		if e.PID == 0 || e.PID == pid {
			waitFor(ctx, changed)
			continue
		}
		pid = e.PID
		if d, why := patience(e, c); d > 0 {
			n.board.probed(c.Name, pid, false, why)
			n.waitWhile(ctx, c.Name, pid, d)
		}
		if c.Probe != nil {
			n.probeProcess(ctx, c.Name, pid, c.Probe, func(err error) string {
				return "not ready: " + err.Error() + elsewhere(pid, c.Listens)
			})
			continue
		}
		n.waitListening(ctx, c, pid)
	}
}

// patience is how long a process of an application runs before anybody asks whether it is ready, and why.
func patience(e entry, c plan.Container) (time.Duration, string) {
	ends := e.Restarts
	if c.Probe == nil {
		ends++ // nobody but its ends tells how it is
	}
	switch {
	case e.Restarts > 0 && ends > 1 && e.Lived < steady:
		return steady, fmt.Sprintf("ended %s after it was started (%s), restarted %d times; it is ready once it has run for %s; see %s",
			e.Lived.Round(time.Millisecond), e.Exit, e.Restarts, steady, c.Log)
	case c.Probe == nil && len(c.Listens) == 0:
		return settle, "starting"
	}
	return 0, ""
}

// waitListening makes an application without a probe ready when it listens where its sidecar and its Services send
// requests to. It stays ready while the process runs: an application is not connected to more often than needed.
func (n *Node) waitListening(ctx context.Context, c plan.Container, pid int) {
	interval := eager
	for ctx.Err() == nil && n.board.get(c.Name).PID == pid {
		closed := slices.IndexFunc(c.Listens, func(a netip.AddrPort) bool {
			return probe.Once(ctx, &plan.Probe{TCP: a.String(), Timeout: time.Second}) != nil
		})
		if closed < 0 {
			n.board.probed(c.Name, pid, true, "")
			return
		}
		n.board.probed(c.Name, pid, false, fmt.Sprintf("does not listen on %s%s", c.Listens[closed], elsewhere(pid, c.Listens)))
		n.waitWhile(ctx, c.Name, pid, interval)
		interval = min(2*interval, time.Second)
	}
}

// elsewhere says where a process listens instead of where it should; empty if it does, or listens nowhere yet.
func elsewhere(pid int, should []netip.AddrPort) string {
	var others []string
	for _, a := range ports.Listening(pid) {
		if !slices.ContainsFunc(should, func(want netip.AddrPort) bool {
			return a == want || a.Port() == want.Port() && a.Addr().IsUnspecified()
		}) {
			others = append(others, a.String())
		}
	}
	if len(others) == 0 || len(should) == 0 {
		return ""
	}
	return fmt.Sprintf("; it listens on %s: it has to use $HOST and $PORT, here %s and %d", strings.Join(others, ", "), should[0].Addr(), should[0].Port())
}

// watchReady probes one of Fairlead's own processes for as long as it is kept running.
func (n *Node) watchReady(ctx context.Context, name string, p *plan.Probe) {
	pid := 0
	for ctx.Err() == nil {
		changed := n.board.Changed()
		e := n.board.get(name)
		if e.PID == 0 || e.PID == pid {
			waitFor(ctx, changed)
			continue
		}
		pid = e.PID
		n.probeProcess(ctx, name, pid, p, func(err error) string { return "not ready: " + err.Error() })
	}
}

// probeProcess probes one run of a process, until it ends.
func (n *Node) probeProcess(ctx context.Context, name string, pid int, p *plan.Probe, why func(error) string) {
	count := probe.NewCounter(p)
	was := false
	n.waitWhile(ctx, name, pid, p.InitialDelay)
	for ctx.Err() == nil && n.board.get(name).PID == pid {
		err := probe.Once(ctx, p)
		if ctx.Err() != nil {
			return
		}
		ready := count.Add(err == nil)
		reason := ""
		if !ready && err != nil {
			reason = why(err)
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
