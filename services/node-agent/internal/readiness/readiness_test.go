package readiness

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

type stats map[string]uint64

func (s stats) Stats(context.Context, string) (map[string]uint64, error) {
	if s == nil {
		return nil, errors.New("connection refused")
	}
	return s, nil
}

func live(cds, lds uint64) stats {
	return stats{
		"server.state": 0, "listener_manager.workers_started": 1,
		"cluster_manager.cds.update_success": cds, "listener_manager.lds.update_success": lds,
	}
}

func TestCheck(t *testing.T) {
	ca := testkit.PKI(t)
	certificate := ca.NewSVID("shop", "web")
	with := func(s stats, name string, value uint64) stats { s[name] = value; return s }
	for _, tc := range []struct {
		name   string
		envoy  stats
		source tlsconf.Source
		after  time.Duration
		want   string
	}{
		{"ready", live(1, 1), certificate, 0, ""},
		{"no certificate", live(1, 1), ca.RootsOnly(), 0, "no certificate yet"},
		{"expired", live(1, 1), certificate, 2 * time.Hour, "expired"},
		{"no Envoy", nil, certificate, 0, "connection refused"},
		{"no clusters", live(0, 1), certificate, 0, "has not received its clusters"},
		{"no listeners", live(1, 0), certificate, 0, "has not received its listeners"},
		{"first listeners rejected", with(live(1, 0), "listener_manager.lds.update_rejected", 2), certificate, 0,
			"rejected its first listeners, 2 times"},
		{"later rejection", with(live(1, 1), "listener_manager.lds.update_rejected", 2), certificate, 0, ""},
		{"initializing", with(live(1, 1), "server.state", 3), certificate, 0, "not live: server state 3"},
		{"no workers", with(live(1, 1), "listener_manager.workers_started", 0), certificate, 0, "workers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clock := testkit.NewClock(time.Now())
			clock.Advance(tc.after)
			first := 0
			p := New(tc.envoy, tc.source, clock, func() { first++ })
			for range 2 {
				err := p.Check(t.Context())
				if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
			}
			if want := map[bool]int{true: 1}[tc.want == ""]; first != want {
				t.Errorf("told of readiness %d times, want %d", first, want)
			}
			p.Drain()
			if err := p.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "draining") {
				t.Errorf("draining: %v", err)
			}
		})
	}
}

// dying is an Envoy that answers, ends and starts again before the Prober has the answer.
type dying struct {
	stats
	prober *Prober
}

func (d *dying) Stats(ctx context.Context, filter string) (map[string]uint64, error) {
	if d.prober != nil {
		d.prober.Restarted()
	}
	return d.stats.Stats(ctx, filter)
}

func TestAnswerOfAnEnvoyThatHasEndedDoesNotCount(t *testing.T) {
	envoy := &dying{stats: live(1, 1)}
	p := New(envoy, testkit.PKI(t).NewSVID("shop", "web"), nil, nil)
	envoy.prober = p
	_ = p.Check(t.Context())
	envoy.prober, envoy.stats = nil, live(0, 0)
	if err := p.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "has not received its clusters") {
		t.Errorf("the next Envoy: %v", err)
	}
}
