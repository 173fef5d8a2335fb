package envoy

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"fairlead.dev/pkg/clock"
)

// drainPoll is the time between two counts of active connections.
const drainPoll = 200 * time.Millisecond

// activeFilter selects the Envoy stats that countActive reads.
const activeFilter = `^(listener\..*\.downstream_cx_active|http\..*\.downstream_(cx|rq)_active)$`

// DrainPolicy says how long to drain. See config.Drain for its fields.
type DrainPolicy struct {
	Termination time.Duration
	Minimum     time.Duration
	ExitOnZero  bool
}

// DrainState is a step of a drain.
type DrainState string

// The states, in order.
const (
	// DrainFail fails health checks, and tells clients with keep-alive connections to reconnect elsewhere.
	DrainFail DrainState = "failing-health-checks"
	// DrainListeners closes connections as their requests end.
	DrainListeners DrainState = "draining-listeners"
	// DrainMinimum serves for DrainPolicy.Minimum.
	DrainMinimum DrainState = "minimum"
	// DrainWait serves until no connection is in use, or until the deadline.
	DrainWait DrainState = "waiting"
	// DrainDone means that Envoy may quit.
	DrainDone DrainState = "done"
)

// adminAPI is the client of Envoy's admin interface; *Admin implements it.
type adminAPI interface {
	Post(ctx context.Context, path string) error
	Stats(ctx context.Context, filter string) (map[string]uint64, error)
}

// Drain takes an Envoy out of service. Until Run returns, Envoy serves its connections and those that still arrive.
type Drain struct {
	Admin  adminAPI
	Policy DrainPolicy
	// Ignore lists the stat prefixes of listeners whose connections do not count, since they serve probes and metrics.
	Ignore []string
	Clock  clock.Clock
	Log    *slog.Logger
}

// Run goes through the states and returns after the last one, or when ctx ends. It logs errors of the admin interface
// and goes on, because an Envoy that does not answer there may still serve traffic.
func (d *Drain) Run(ctx context.Context) {
	begin := d.Clock.Now()
	for state := DrainFail; state != DrainDone && ctx.Err() == nil; {
		d.Log.Info("drain", "state", string(state), "since", d.Clock.Now().Sub(begin).Round(time.Millisecond))
		state = d.step(ctx, state, begin)
	}
}

// step performs one state and returns the next one.
func (d *Drain) step(ctx context.Context, state DrainState, begin time.Time) DrainState {
	switch state {
	case DrainFail:
		d.post(ctx, "/healthcheck/fail")
		return DrainListeners
	case DrainListeners:
		d.post(ctx, "/drain_listeners?graceful")
		if d.Policy.ExitOnZero {
			return DrainMinimum
		}
		return DrainWait
	case DrainMinimum:
		// The deadline takes precedence over a longer minimum.
		least := d.Policy.Minimum
		if t := d.Policy.Termination; t > 0 {
			least = min(least, t)
		}
		d.sleep(ctx, least-d.Clock.Now().Sub(begin))
		return DrainWait
	case DrainWait:
		if d.Policy.ExitOnZero {
			d.untilIdle(ctx, begin)
		} else {
			d.sleep(ctx, d.Policy.Termination-d.Clock.Now().Sub(begin))
		}
	}
	return DrainDone
}

func (d *Drain) untilIdle(ctx context.Context, begin time.Time) {
	for ctx.Err() == nil {
		active, err := d.active(ctx)
		elapsed := d.Clock.Now().Sub(begin)
		if err == nil && active == 0 {
			d.Log.Info("no connection is in use", "elapsed", elapsed)
			return
		}
		if t := d.Policy.Termination; t > 0 && elapsed >= t {
			d.Log.Warn("drain deadline reached", "active_connections", active, "error", err)
			return
		}
		d.Log.Debug("waiting for connections to end", "active_connections", active, "error", err)
		d.sleep(ctx, drainPoll)
	}
}

// active counts the connections that keep the proxy busy.
func (d *Drain) active(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stats, err := d.Admin.Stats(ctx, activeFilter)
	if err != nil {
		return 0, fmt.Errorf("count connections: %w", err)
	}
	return countActive(stats, d.Ignore), nil
}

// countActive counts the connections that are in use. An HTTP connection is in use while it carries a request, because
// peers keep idle ones in their pools forever; any other is in use while it is open. It leaves out the admin interface,
// the listeners to ignore, and the stats per worker, which are part of a listener's total.
func countActive(stats map[string]uint64, ignore []string) uint64 {
	var open, http, requests uint64
	for name, n := range stats {
		kind, rest, _ := strings.Cut(name, ".")
		ignored := func(prefix string) bool { return strings.HasPrefix(rest, prefix+".") }
		if ignored("admin") || slices.ContainsFunc(ignore, ignored) {
			continue
		}
		switch {
		case kind == "listener" && !strings.Contains(rest, ".worker_"):
			open += n
		case kind == "http" && strings.HasSuffix(rest, ".downstream_cx_active"):
			http += n
		case kind == "http":
			requests += n
		}
	}
	return requests + open - min(http, open)
}

func (d *Drain) post(ctx context.Context, path string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := d.Admin.Post(ctx, path); err != nil {
		d.Log.Warn("drain request failed", "error", err)
	}
}

func (d *Drain) sleep(ctx context.Context, dur time.Duration) {
	if dur > 0 {
		clock.Sleep(ctx, d.Clock, dur)
	}
}
