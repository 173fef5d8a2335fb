// Package trustbundle assembles the trust bundle of the mesh and distributes it. Manager joins the roots of the ca's
// signers with those of a file, such as the root of a ca that replaces this one, and publishes them. Publisher holds
// the current bundle with its generation number. Server sends each generation to the callers of
// fairlead.ca.v1.TrustService, and Watches records which generation each of them has acknowledged.
package trustbundle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/fileio"
)

const (
	// period is the time between two reads of the file. Roots change rarely and the file is small, so no file events.
	period = 2 * time.Second
	// maxFileBytes bounds the file.
	maxFileBytes = 1 << 20
)

// ManagerConfig of a Manager. ExtraFile may be empty, all others are required.
type ManagerConfig struct {
	// Own returns the roots of the signers of this ca in PEM, and a channel that is closed when others replace them. An
	// error leaves the bundle as it is.
	Own func() (Own, <-chan struct{}, error)
	// ExtraFile holds more roots in PEM; Run reads it again and again. It is not read where Own has the whole bundle.
	ExtraFile string
	// Out gets the bundle as PEM whenever it has changed, to write it to a file.
	Out       func(bundle []byte) error
	Publisher *Publisher
	Clock     interface {
		After(d time.Duration) <-chan time.Time
	}
	Log *slog.Logger
}

// Manager reads the roots and publishes them as the bundle. It is safe for concurrent use.
type Manager struct {
	cfg ManagerConfig

	publishing sync.Mutex
	last       string

	mu      sync.Mutex
	problem error
}

// NewManager makes a Manager that has published nothing yet.
func NewManager(cfg ManagerConfig) *Manager { return &Manager{cfg: cfg} }

// Publish reads the file and publishes the bundle if it has changed. An error leaves the bundle as it was. The ca calls
// it once before it serves; Run calls it from then on.
func (m *Manager) Publish(ctx context.Context) error {
	m.publishing.Lock()
	defer m.publishing.Unlock()
	err := m.publish(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problem = err
	return err
}

func (m *Manager) publish(ctx context.Context) error {
	own, _, err := m.cfg.Own()
	if err != nil {
		return fmt.Errorf("roots of the signer: %w", err)
	}
	all := slices.Clone(own.Roots)
	if m.cfg.ExtraFile != "" && !own.Whole {
		text, err := fileio.Read(m.cfg.ExtraFile, maxFileBytes)
		if err != nil {
			return fmt.Errorf("extra roots: %w", err)
		}
		extra, err := ParseRoots(text)
		if err != nil {
			return fmt.Errorf("extra roots: %s: %w", m.cfg.ExtraFile, err)
		}
		all = append(all, extra...)
	}
	if err := m.cfg.Publisher.Publish(ctx, own.Roots, all); err != nil {
		return err
	}
	bundle, _ := m.cfg.Publisher.Current()
	if bundle.PEM == m.last {
		return nil
	}
	if err := m.cfg.Out([]byte(bundle.PEM)); err != nil {
		return err
	}
	m.last = bundle.PEM
	m.cfg.Log.Info("trust bundle published", "generation", bundle.Generation, "roots", len(bundle.Roots))
	return nil
}

// Run calls Publish every period, and when the signer has other roots, until ctx ends. It logs an error once, when it
// first occurs; Check returns it for as long as it lasts.
func (m *Manager) Run(ctx context.Context) error {
	for {
		_, changed, _ := m.cfg.Own() // Publish tells the error
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-m.cfg.Clock.After(period):
		}
		before := m.Check()
		err := m.Publish(ctx)
		if err != nil && ctx.Err() == nil && (before == nil || before.Error() != err.Error()) {
			m.cfg.Log.Error("trust bundle not updated, the last one stays", "error", err)
		}
	}
}

// Check returns the error of the last Publish, nil if it succeeded. The debug page and a gauge show it.
func (m *Manager) Check() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.problem
}
