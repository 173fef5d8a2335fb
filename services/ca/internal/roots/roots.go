// Package roots puts together the trust bundle: the ca's own root and those an operator wants trusted besides it, such as the root of a ca that is about to
// be replaced or to take over.
package roots

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/ca/internal/trust"
)

const (
	// period of re-reading the file. Trust moves slowly and the file is small, so there is no need for file events.
	period = 2 * time.Second
	// maxFileBytes bounds the file.
	maxFileBytes = 1 << 20
)

// Config of a Keeper. ExtraFile may be empty, all others are required.
type Config struct {
	// Own is the ca's root in PEM.
	Own string
	// ExtraFile holds more roots in PEM; it is read again while the ca runs.
	ExtraFile string
	// Out writes the bundle for distribution when it has changed.
	Out       func(bundle []byte) error
	Publisher *trust.Publisher
	Clock     interface {
		After(d time.Duration) <-chan time.Time
	}
	Log *slog.Logger
}

// Keeper publishes the bundle and follows the file.
type Keeper struct {
	cfg Config

	publishing sync.Mutex
	last       []byte

	mu      sync.Mutex
	trouble error
}

// New makes a keeper that has published nothing yet.
func New(cfg Config) *Keeper { return &Keeper{cfg: cfg} }

// Publish reads the file and publishes the bundle if it has changed. An error leaves the bundle as it was.
func (k *Keeper) Publish(ctx context.Context) error {
	k.publishing.Lock()
	defer k.publishing.Unlock()
	err := k.publish(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble = err
	return err
}

func (k *Keeper) publish(ctx context.Context) error {
	all := []string{k.cfg.Own}
	if k.cfg.ExtraFile != "" {
		text, err := fileio.Read(k.cfg.ExtraFile, maxFileBytes)
		if err != nil {
			return fmt.Errorf("extra roots: %w", err)
		}
		extra, err := trust.ParseRoots(text)
		if err != nil {
			return fmt.Errorf("extra roots: %s: %w", k.cfg.ExtraFile, err)
		}
		all = append(all, extra...)
	}
	if err := k.cfg.Publisher.Publish(ctx, all); err != nil {
		return err
	}
	bundle, _ := k.cfg.Publisher.Current()
	var text bytes.Buffer
	for _, root := range bundle.Roots {
		text.WriteString(root)
	}
	if bytes.Equal(text.Bytes(), k.last) {
		return nil
	}
	if err := k.cfg.Out(text.Bytes()); err != nil {
		return err
	}
	k.last = text.Bytes()
	k.cfg.Log.Info("trust bundle published", "generation", bundle.Generation, "roots", len(bundle.Roots))
	return nil
}

// Run publishes again and again until ctx ends. Trouble with the file is logged once and told by Check; the bundle stays as it was.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.cfg.Clock.After(period):
		}
		before := k.Check()
		err := k.Publish(ctx)
		if err != nil && ctx.Err() == nil && (before == nil || before.Error() != err.Error()) {
			k.cfg.Log.Error("trust bundle not updated, the last one stays", "error", err)
		}
	}
}

// Check is the trouble of the last Publish, nil if there was none.
func (k *Keeper) Check() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.trouble
}
