// Package ready decides whether the workload may receive traffic.
package ready

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/tlsconf"
)

// filter selects the stats that Check reads.
const filter = `^(server\.state|listener_manager\.workers_started|(cluster_manager\.cds|listener_manager\.lds)\.update_(success|rejected))$`

// serverLive is server.state when Envoy serves (envoy.admin.v3.ServerInfo.State).
const serverLive = 0

// statsReader is the part of Envoy's admin interface that is used.
type statsReader interface {
	Stats(ctx context.Context, filter string) (map[string]uint64, error)
}

// Prober answers readiness probes. It is safe for concurrent use.
type Prober struct {
	envoy    statsReader
	source   tlsconf.Source
	clock    clock.Clock
	draining atomic.Bool
	// configured is remembered: an Envoy that has had configuration keeps it,
	// whatever is rejected later.
	configured atomic.Bool
	first      sync.Once
	onReady    func()
}

// New makes a Prober. onReady, which may be nil, is called once, by the first
// Check that passes.
func New(envoy statsReader, source tlsconf.Source, c clock.Clock, onReady func()) *Prober {
	if onReady == nil {
		onReady = func() {}
	}
	return &Prober{envoy: envoy, source: source, clock: clock.Or(c), onReady: onReady}
}

// Drain makes every later Check fail.
func (p *Prober) Drain() { p.draining.Store(true) }

// Check is nil when Envoy is live, has applied its first clusters and listeners
// and the workload has a valid certificate. Otherwise it says what is missing.
func (p *Prober) Check(ctx context.Context) error {
	if p.draining.Load() {
		return errors.New("the proxy is draining")
	}
	m, err := p.source.Current()
	switch {
	case err != nil:
		return fmt.Errorf("no trust bundle: %w", err)
	case m.Certificate == nil:
		return errors.New("no certificate yet")
	case !p.clock.Now().Before(m.NotAfter):
		return fmt.Errorf("the certificate expired at %s", m.NotAfter.Format(time.RFC3339))
	}
	stats, err := p.envoy.Stats(ctx, filter)
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	if !p.configured.Load() {
		if err := configured(stats); err != nil {
			return err
		}
		p.configured.Store(true)
	}
	if state, ok := stats["server.state"]; !ok || state != serverLive {
		return fmt.Errorf("envoy is not live: server state %d", state)
	}
	if stats["listener_manager.workers_started"] != 1 {
		return errors.New("envoy's workers have not started")
	}
	p.first.Do(p.onReady)
	return nil
}

func configured(stats map[string]uint64) error {
	for _, t := range []struct{ name, prefix string }{
		{"clusters", "cluster_manager.cds"},
		{"listeners", "listener_manager.lds"},
	} {
		if stats[t.prefix+".update_success"] > 0 {
			continue
		}
		if n := stats[t.prefix+".update_rejected"]; n > 0 {
			return fmt.Errorf("envoy rejected its first %s, %d times", t.name, n)
		}
		return fmt.Errorf("envoy has not received its %s", t.name)
	}
	return nil
}
