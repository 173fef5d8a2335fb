package proxyless

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/node-agent/internal/readiness"
)

// retryPause is the time between attempts to write.
const retryPause = 5 * time.Second

// Config of Files. Source, CertificateDir and Log are required.
type Config struct {
	Source tlsconf.Source
	// CertificateDir is made if it is absent, for this user only.
	CertificateDir string
	// BootstrapPath and Bootstrap are the bootstrap file. It is written after the certificate, so that a program that
	// finds it finds all files. An empty path writes none.
	BootstrapPath string
	Bootstrap     []byte
	Log           *slog.Logger
	Clock         clock.Clock
}

// Files writes the bootstrap and certificate files of proxyless gRPC programs. It is safe for concurrent use.
type Files struct {
	cfg      Config
	written  atomic.Bool
	draining atomic.Bool

	// wrote notifies of files that were written, with these roots.
	wrote notify.Notifier
	roots atomic.Pointer[[]byte]
}

// NewFiles makes Files. Run writes them.
func NewFiles(c Config) *Files {
	c.Clock = clock.Or(c.Clock)
	return &Files{cfg: c}
}

// Run writes the files now and whenever the certificate or the roots change, until ctx ends. It logs a failure and
// tries again after retryPause. The files stay when it returns.
func (f *Files) Run(ctx context.Context) error {
	for {
		changed := f.cfg.Source.Changed()
		var again <-chan time.Time
		if m, err := f.cfg.Source.Current(); err == nil && m.Certificate != nil {
			if err := f.write(m); err != nil {
				f.cfg.Log.Error("the workload's certificate files cannot be written", "error", err)
				again = f.cfg.Clock.After(retryPause)
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

// write replaces the files, if their content differs: key, certificate and roots at one moment, so that no program
// reads those of two certificates.
func (f *Files) write(m *tlsconf.Material) error {
	if err := fileio.ReplaceSet(f.cfg.CertificateDir,
		map[string][]byte{rootFile: m.RootsPEM, keyFile: m.KeyPEM, certificateFile: m.CertPEM}); err != nil {
		return err
	}
	if f.cfg.BootstrapPath != "" {
		if held, err := os.ReadFile(f.cfg.BootstrapPath); err != nil || !bytes.Equal(held, f.cfg.Bootstrap) {
			if err := fileio.Replace(f.cfg.BootstrapPath, f.cfg.Bootstrap); err != nil {
				return err
			}
		}
	}
	f.roots.Store(&m.RootsPEM)
	f.wrote.Notify()
	if !f.written.Swap(true) {
		f.cfg.Log.Info("the workload's certificate files are written", "certificates", f.cfg.CertificateDir, "bootstrap", f.cfg.BootstrapPath)
	}
	return nil
}

// RootsInUse returns nil when the files have the roots of now; at once as long as there is no certificate to write. The
// error is that of ctx.
func (f *Files) RootsInUse(ctx context.Context) error {
	for {
		changed, wrote := f.cfg.Source.Changed(), f.wrote.Changed()
		m, err := f.cfg.Source.Current()
		if err != nil || m.Certificate == nil {
			return nil //nolint:nilerr // nothing is used yet
		}
		if roots := f.roots.Load(); roots != nil && bytes.Equal(*roots, m.RootsPEM) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-wrote:
		}
	}
}

// Drain makes every later Check fail, so that the workload gets no new traffic.
func (f *Files) Drain() { f.draining.Store(true) }

// Check returns nil when the files are written and their certificate is valid. It answers the readiness probe of an
// agent without Envoy.
func (f *Files) Check(context.Context) error {
	if f.draining.Load() {
		return errors.New("the workload is draining")
	}
	if err := readiness.CheckCertificate(f.cfg.Source, f.cfg.Clock.Now()); err != nil {
		return err
	}
	if !f.written.Load() {
		return fmt.Errorf("the files in %s are not written yet", f.cfg.CertificateDir)
	}
	return nil
}
