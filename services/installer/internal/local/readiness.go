package local

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fairlead.dev/pkg/clock"

	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/ports"
	"fairlead.dev/services/installer/internal/local/probe"
)

// startupProbePeriod is the period of probes until the process is ready for the first time, so that starting a mesh
// does not wait for the periods of its probes.
const startupProbePeriod = 100 * time.Millisecond

// How long an application must run before it can be ready.
const (
	// minUptime is for an application without probe and ports: one that ends at once was never ready.
	minUptime = time.Second
	// minUptimeAfterExit is for an application that keeps ending sooner than that.
	minUptimeAfterExit = 10 * time.Second
)

// watchContainer keeps an application's readiness until ctx ends. An application may end again and again, or listen on
// another port than the one that it was given.
func (n *Node) watchContainer(ctx context.Context, c plan.Container) {
	n.eachRun(ctx, c.Name, func(e processStatus) {
		if d, why := requiredUptime(e, c); d > 0 {
			n.statuses.setReadiness(c.Name, e.PID, false, why)
			n.waitWhileRunning(ctx, c.Name, e.PID, d)
		}
		if c.Probe == nil {
			n.waitListening(ctx, c, e.PID)
			return
		}
		n.probeProcess(ctx, c.Name, e.PID, c.Probe, func(err error) string {
			return "not ready: " + err.Error() + otherAddresses(e.PID, c.Listens)
		})
	})
}

// eachRun calls do for each run of a process, one after the other, until ctx ends.
func (n *Node) eachRun(ctx context.Context, name string, do func(processStatus)) {
	pid := 0
	for ctx.Err() == nil {
		changed := n.statuses.Changed()
		e := n.statuses.get(name)
		if e.PID == 0 || e.PID == pid {
			waitFor(ctx, changed)
			continue
		}
		pid = e.PID
		do(e)
	}
}

// requiredUptime returns how long the process must run before it is probed, and the reason that is shown meanwhile.
func requiredUptime(e processStatus, c plan.Container) (time.Duration, string) {
	ends := e.Restarts
	if c.Probe == nil {
		ends++ // without a probe, its exits are all that is known of it
	}
	switch {
	case e.Restarts > 0 && ends > 1 && e.Lived < minUptimeAfterExit:
		return minUptimeAfterExit, fmt.Sprintf(
			"ended %s after it was started (%s), restarted %d times; it is ready once it has run for %s; see %s",
			e.Lived.Round(time.Millisecond), e.Exit, e.Restarts, minUptimeAfterExit, c.Log)
	case c.Probe == nil && len(c.Listens) == 0:
		return minUptime, "starting"
	}
	return 0, ""
}

// waitListening makes an application without a probe ready once it listens on all of its addresses. It stays ready
// while it runs: the addresses are not checked again.
func (n *Node) waitListening(ctx context.Context, c plan.Container, pid int) {
	interval := startupProbePeriod
	for ctx.Err() == nil && n.statuses.get(c.Name).PID == pid {
		closed := slices.IndexFunc(c.Listens, func(a netip.AddrPort) bool {
			return probe.Once(ctx, &plan.Probe{TCP: a.String(), Timeout: time.Second}) != nil
		})
		if closed < 0 {
			n.statuses.setReadiness(c.Name, pid, true, "")
			return
		}
		n.statuses.setReadiness(c.Name, pid, false, fmt.Sprintf("does not listen on %s%s", c.Listens[closed], otherAddresses(pid, c.Listens)))
		n.waitWhileRunning(ctx, c.Name, pid, interval)
		interval = min(2*interval, time.Second)
	}
}

// otherAddresses says where a process listens beside the addresses that it should listen on; empty if nowhere.
func otherAddresses(pid int, should []netip.AddrPort) string {
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
	return fmt.Sprintf("; it listens on %s: it has to use $HOST and $PORT, here %s and %d", strings.Join(others, ", "), should[0].Addr(),
		should[0].Port())
}

// probeOwnProcess keeps the readiness of one of Fairlead's own processes until ctx ends.
func (n *Node) probeOwnProcess(ctx context.Context, name string, p *plan.Probe) {
	n.eachRun(ctx, name, func(e processStatus) {
		n.probeProcess(ctx, name, e.PID, p, func(err error) string { return "not ready: " + err.Error() })
	})
}

// probeProcess probes a process until it ends.
func (n *Node) probeProcess(ctx context.Context, name string, pid int, p *plan.Probe, why func(error) string) {
	count := probe.NewCounter(p)
	was := false
	n.waitWhileRunning(ctx, name, pid, p.InitialDelay)
	for ctx.Err() == nil && n.statuses.get(name).PID == pid {
		err := probe.Once(ctx, p)
		if ctx.Err() != nil {
			return
		}
		ready := count.Add(err == nil)
		reason := ""
		if !ready && err != nil {
			reason = why(err)
		}
		n.statuses.setReadiness(name, pid, ready, reason)
		was = was || ready
		interval := p.Period
		if !was {
			interval = min(interval, startupProbePeriod)
		}
		n.waitWhileRunning(ctx, name, pid, interval)
	}
}

// waitWhileRunning waits for d, or until the process has another pid or ctx ends.
func (n *Node) waitWhileRunning(ctx context.Context, name string, pid int, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := n.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	for {
		changed := n.statuses.Changed()
		if n.statuses.get(name).PID != pid {
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

// waitFor waits until changed is closed or ctx ends.
func waitFor(ctx context.Context, changed <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-changed:
	}
}

// wait waits for d; false if ctx ended first.
func (n *Node) wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	return clock.Sleep(ctx, n.cfg.Clock, d)
}

// serviceProbe is the readiness probe of a service.
func serviceProbe(s *plan.Service) *plan.Probe {
	return &plan.Probe{
		URL:    "http://" + s.Ops.String() + "/readyz",
		Period: 2 * time.Second, Timeout: time.Second, SuccessThreshold: 1, FailureThreshold: 2,
	}
}

// agentProbe is the readiness probe of an agent. Its period is short because callers must stop using a draining proxy
// before it ends.
func agentProbe(a *plan.Agent) *plan.Probe {
	return &plan.Probe{
		URL:    "http://" + a.Ready.String() + "/healthz/ready",
		Period: 400 * time.Millisecond, Timeout: time.Second, SuccessThreshold: 1, FailureThreshold: 2,
	}
}
