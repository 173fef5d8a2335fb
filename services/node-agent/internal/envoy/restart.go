package envoy

import (
	"context"
	"errors"
	"math/rand/v2"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/telemetry"
)

const (
	// restartWindow is how long a crash counts against RestartPolicy.Max.
	restartWindow = 5 * time.Minute
	// minRestartPause and maxRestartPause bound the pause before a restart, which doubles with each crash in the
	// window.
	minRestartPause = 250 * time.Millisecond
	maxRestartPause = 10 * time.Second
)

// Reason says how an Envoy ended that the agent did not tell to end. It is a label of a metric.
type Reason string

// The reasons.
const (
	// Exited means that Envoy ended with an error status: it does not accept its bootstrap, or a port is taken.
	Exited Reason = "exited"
	// Crashed means that a signal of its own doing ended Envoy, such as SIGSEGV or SIGABRT.
	Crashed Reason = "crashed"
	// Killed means SIGKILL, and that the kernel has not killed a process of this control group for memory meanwhile.
	Killed Reason = "killed"
	// OutOfMemory means SIGKILL by the kernel, because the memory of the control group or the machine ran out.
	OutOfMemory Reason = "out_of_memory"
)

var reasonTexts = map[Reason]string{
	Exited:  "it ended with an error; its log above has the reason",
	Crashed: "it crashed; its log above has the reason",
	Killed:  "it was killed (SIGKILL) by somebody else than the kernel",
	OutOfMemory: "the kernel killed it because memory ran out: give the container a higher memory limit, or the proxy less configuration " +
		"(Sidecar, onDemand)",
}

// unknownKill replaces the text of Killed where the kernel does not count the processes that it kills.
const unknownKill = "it was killed (SIGKILL): out of memory, or by hand"

// reasonOf explains the end of a process. kills are the counts of OOMKills before its start and after its end.
func reasonOf(err error, before, after uint64) Reason {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return Exited
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	switch {
	case !ok || !status.Signaled():
		return Exited
	case status.Signal() != syscall.SIGKILL:
		return Crashed
	case after > before:
		return OutOfMemory
	}
	return Killed
}

// crashes remembers when Envoy ended by itself, to bound how often it is started again.
type crashes struct{ at []time.Time }

// next records a crash at now. pause is how long to wait before the restart; again is false if there have been more
// than most within restartWindow.
func (c *crashes) next(now time.Time, most int) (pause time.Duration, again bool) {
	c.at = append(slices.DeleteFunc(c.at, func(t time.Time) bool { return now.Sub(t) > restartWindow }), now)
	n := len(c.at)
	return min(minRestartPause<<min(n-1, 16), maxRestartPause), n <= most
}

// pauseBeforeRestart waits a random part of the pause, at least half of it, so that the Envoys of a mesh that crash
// over one configuration do not start again all at once. It reports false if ctx or stop ended first.
func pauseBeforeRestart(ctx, stop context.Context, c clock.Clock, pause time.Duration) bool {
	select {
	case <-ctx.Done():
	case <-stop.Done():
	case <-c.After(pause/2 + rand.N(pause/2)):
		return true
	}
	return false
}

// Metrics count how Envoy ends.
type Metrics struct {
	exits    *prometheus.CounterVec
	restarts prometheus.Counter
}

// NewMetrics registers the counters.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	return &Metrics{
		exits: telemetry.CounterVec(registry, prometheus.CounterOpts{
			Name: "fairlead_node_agent_envoy_exits_total",
			Help: "Ends of Envoy that the agent did not ask for, by reason: crashed, exited, killed, out_of_memory.",
		}, "reason", Crashed, Exited, Killed, OutOfMemory),
		restarts: promauto.With(registry).NewCounter(prometheus.CounterOpts{
			Name: "fairlead_node_agent_envoy_restarts_total",
			Help: "Starts of Envoy after it had ended without being asked to.",
		}),
	}
}
