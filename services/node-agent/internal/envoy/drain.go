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

// drainPoll is how often active connections are counted.
const drainPoll = 200 * time.Millisecond

// activeFilter selects the gauges that countActive reads.
const activeFilter = `^(listener\..*\.downstream_cx_active|http\..*\.downstream_(cx|rq)_active)$`

// DrainPolicy says how long to drain; see config.Drain.
type DrainPolicy struct {
	Termination time.Duration
	Minimum     time.Duration
	ExitOnZero  bool
}

// DrainState is where a drain is.
type DrainState string

// The states, in order. A drain only ever moves forward.
const (
	// DrainFail tells probes, peers and keep-alive clients to go elsewhere.
	DrainFail DrainState = "failing-health-checks"
	// DrainListeners closes connections as their requests end.
	DrainListeners DrainState = "draining-listeners"
	// DrainMinimum serves for the least time that was asked for.
	DrainMinimum DrainState = "minimum"
	// DrainWait serves until no connection is in use or the deadline.
	DrainWait DrainState = "waiting"
	// DrainDone is the end: Envoy may quit.
	DrainDone DrainState = "done"
)

// adminAPI is what a drain needs of Envoy.
type adminAPI interface {
	Post(ctx context.Context, path string) error
	Stats(ctx context.Context, filter string) (map[string]uint64, error)
}

// Drain takes a proxy out of service. Envoy goes on serving what it has, and
// what still arrives, until Run returns.
type Drain struct {
	Admin  adminAPI
	Policy DrainPolicy
	// Ignore lists stat prefixes, of listeners and of their HTTP, whose
	// connections do not count: probes and metrics.
	Ignore []string
	Clock  clock.Clock
	Log    *slog.Logger
}

// Run goes through the states. It returns early when ctx ends. Errors of the
// admin interface are logged and do not shorten the drain: an Envoy that does
// not answer may still be serving.
func (d *Drain) Run(ctx context.Context) {
	begin := d.Clock.Now()
	for state := DrainFail; state != DrainDone && ctx.Err() == nil; {
		d.Log.Info("drain", "state", string(state), "since", d.Clock.Now().Sub(begin).Round(time.Millisecond))
		state = d.step(ctx, state, begin)
	}
}

// step does what one state asks for and returns the next.
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
		// The deadline wins over a minimum that is longer.
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

// countActive counts the connections that are in use. One that speaks HTTP is
// in use while it carries a request, because peers keep idle connections in
// their pools for ever; any other is in use while it is open. Left out are the
// admin interface, listeners to ignore, and the workers' shares of a listener's
// total.
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
	if dur <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-d.Clock.After(dur):
	}
}
