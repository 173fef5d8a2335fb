package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/tlsconf"
)

// retryPause is the time between attempts to write.
const retryPause = 5 * time.Second

// Config of a Keeper. Source, CertificateDir and Log are required.
type Config struct {
	Source tlsconf.Source
	// CertificateDir is made if it is absent, for this user only.
	CertificateDir string
	// BootstrapPath and Bootstrap are a file that is written once the
	// certificate is there: a program that finds it finds all it needs. An empty
	// path writes none.
	BootstrapPath string
	Bootstrap     []byte
	Log           *slog.Logger
	Clock         clock.Clock
}

// Keeper keeps the files of programs. Its methods are safe for concurrent use.
type Keeper struct {
	cfg      Config
	written  atomic.Bool
	draining atomic.Bool
}

// NewKeeper makes a Keeper. Run writes.
func NewKeeper(c Config) *Keeper {
	c.Clock = clock.Or(c.Clock)
	return &Keeper{cfg: c}
}

// Run writes the files whenever the certificate or the roots change, until ctx
// ends. What cannot be written is logged and tried again. The files stay.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		changed := k.cfg.Source.Changed()
		var again <-chan time.Time
		if m, err := k.cfg.Source.Current(); err == nil && m.Certificate != nil {
			if err := k.write(m); err != nil {
				k.cfg.Log.Error("the files of gRPC programs cannot be written", "error", err)
				again = k.cfg.Clock.After(retryPause)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

// write replaces what differs. A program may read the new key and the old
// certificate; it then keeps what it has and looks again.
func (k *Keeper) write(m *tlsconf.Material) error {
	if err := os.MkdirAll(k.cfg.CertificateDir, 0o700); err != nil {
		return err
	}
	for _, file := range []struct {
		name string
		data []byte
	}{{rootFile, m.RootsPEM}, {keyFile, m.KeyPEM}, {certificateFile, m.CertPEM}} {
		if err := replace(filepath.Join(k.cfg.CertificateDir, file.name), file.data); err != nil {
			return err
		}
	}
	if k.cfg.BootstrapPath != "" {
		if err := os.MkdirAll(filepath.Dir(k.cfg.BootstrapPath), 0o700); err != nil {
			return err
		}
		if err := replace(k.cfg.BootstrapPath, k.cfg.Bootstrap); err != nil {
			return err
		}
	}
	if !k.written.Swap(true) {
		k.cfg.Log.Info("gRPC programs may start", "certificates", k.cfg.CertificateDir, "bootstrap", k.cfg.BootstrapPath)
	}
	return nil
}

func replace(path string, data []byte) error {
	if held, err := os.ReadFile(path); err == nil && bytes.Equal(held, data) {
		return nil
	}
	return fileio.Write(path, data, 0o600)
}

// Drain makes every later Check fail.
func (k *Keeper) Drain() { k.draining.Store(true) }

// Check is nil when programs have what they need: the files, and in them a
// certificate that is valid.
func (k *Keeper) Check(context.Context) error {
	if k.draining.Load() {
		return errors.New("the workload is draining")
	}
	m, err := k.cfg.Source.Current()
	switch {
	case err != nil:
		return fmt.Errorf("no trust bundle: %w", err)
	case m.Certificate == nil:
		return errors.New("no certificate yet")
	case !k.cfg.Clock.Now().Before(m.NotAfter):
		return fmt.Errorf("the certificate expired at %s", m.NotAfter.Format(time.RFC3339))
	case !k.written.Load():
		return fmt.Errorf("the files in %s are not written yet", k.cfg.CertificateDir)
	}
	return nil
}
