// Package readiness decides whether the workload may receive traffic. Prober.Check answers the readiness probes of an
// agent with an Envoy, which package status serves; CheckCertificate is its part that needs no Envoy.
package readiness

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

// filter selects the Envoy stats that Check reads.
const filter = `^(server\.state|listener_manager\.workers_started|(cluster_manager\.cds|listener_manager\.lds)\.update_(success|rejected))$`

// serverLive is the value of server.state for LIVE (envoy.admin.v3.ServerInfo.State).
const serverLive = 0

// statsReader reads stats by Envoy's admin interface; *envoy.Admin implements it.
type statsReader interface {
	Stats(ctx context.Context, filter string) (map[string]uint64, error)
}

// Prober answers readiness probes. It is safe for concurrent use.
type Prober struct {
	envoy    statsReader
	source   tlsconf.Source
	clock    clock.Clock
	draining atomic.Bool
	// restarts counts Envoys that have ended. configured is the number of the one that has clusters and listeners, from
	// 1 on: it keeps them when it rejects later ones, until it ends.
	restarts, configured atomic.Uint64
	first                sync.Once
	onReady              func()
	// required is a further condition; nil if there is none.
	required func() error
}

// New makes a Prober. The first Check that passes calls onReady, which may be nil.
func New(envoy statsReader, source tlsconf.Source, c clock.Clock, onReady func()) *Prober {
	if onReady == nil {
		onReady = func() {}
	}
	return &Prober{envoy: envoy, source: source, clock: clock.Or(c), onReady: onReady}
}

// Require makes Check fail while check does. It must be called before the first Check.
func (p *Prober) Require(check func() error) { p.required = check }

// Drain makes every later Check fail. The supervisor of Envoy calls it when a drain begins.
func (p *Prober) Drain() { p.draining.Store(true) }

// Restarted makes Check wait again for the first clusters and listeners. The supervisor of Envoy calls it before it
// starts another one.
func (p *Prober) Restarted() { p.restarts.Add(1) }

// Check returns nil when Envoy is live and has applied its first clusters and listeners, the workload has a valid
// certificate, and what Require was given holds. Otherwise the error says what is missing.
func (p *Prober) Check(ctx context.Context) error {
	if p.draining.Load() {
		return errors.New("the proxy is draining")
	}
	if err := CheckCertificate(p.source, p.clock.Now()); err != nil {
		return err
	}
	if p.required != nil {
		if err := p.required(); err != nil {
			return err
		}
	}
	number := p.restarts.Load() + 1 // of the Envoy that is asked, or of one before
	stats, err := p.envoy.Stats(ctx, filter)
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	if p.configured.Load() != number {
		if err := configured(stats); err != nil {
			return err
		}
		p.configured.Store(number)
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

// CheckCertificate returns nil when the source has a trust bundle and a certificate that is valid at now and does not
// end soon.
func CheckCertificate(source tlsconf.Source, now time.Time) error {
	m, err := source.Current()
	switch {
	case err != nil:
		return fmt.Errorf("no trust bundle: %w", err)
	case m.Certificate == nil:
		return errors.New("no certificate yet")
	case !now.Before(m.NotAfter):
		return fmt.Errorf("the certificate expired at %s", m.NotAfter.Format(time.RFC3339))
	}
	return expiring(m, now)
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
