package tlsconf

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/filewatch"
	"fairlead.dev/pkg/notify"
)

// FilesConfig names PEM files. CertFile and KeyFile are both set or both empty.
type FilesConfig struct {
	CertFile, KeyFile string
	// RootFile holds the root certificates. Required.
	RootFile string
	// Interval is how often files are read even without a notification, because notifications get lost on some file
	// systems. Default 30 s.
	Interval time.Duration
	// Debounce is how long files must not have changed before they are read; see filewatch.Follower.
	Debounce time.Duration
	Clock    clock.Clock
	Log      *slog.Logger
}

// Files is a Source that follows files. It keeps the last good material while files are missing, broken or half
// replaced.
type Files struct {
	notify.Notifier
	cfg FilesConfig

	mu      sync.Mutex
	current *Material
	err     error
}

// NewFiles returns a source that reads the files at the first call of Current; Run follows their changes.
func NewFiles(cfg FilesConfig) *Files {
	if cfg.Interval <= 0 {
		cfg.Interval = 30 * time.Second
	}
	cfg.Clock = clock.Or(cfg.Clock)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Files{cfg: cfg}
}

// Current returns the last good material. If there is none, the error names the file.
func (f *Files) Current() (*Material, error) {
	f.mu.Lock()
	m := f.current
	f.mu.Unlock()
	if m != nil {
		return m, nil
	}
	f.reload()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current == nil {
		return nil, f.err
	}
	return f.current, nil
}

// Check returns what is wrong with the files, also while older material is in use; it is a readiness check.
func (f *Files) Check() error {
	if _, err := f.Current(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Run follows the files until ctx ends. It returns nil; Check reports problems.
func (f *Files) Run(ctx context.Context) error {
	files := slices.DeleteFunc([]string{f.cfg.CertFile, f.cfg.KeyFile, f.cfg.RootFile}, func(file string) bool { return file == "" })
	filewatch.Follower{
		Files: func() []string { return files }, Clock: f.cfg.Clock, Log: f.cfg.Log, Debounce: f.cfg.Debounce,
		Read: func() time.Duration {
			f.reload()
			return f.interval()
		},
	}.Run(ctx)
	return nil
}

// interval is short while files are missing or broken, which usually does not last.
func (f *Files) interval() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return min(f.cfg.Interval, time.Second)
	}
	return f.cfg.Interval
}

func (f *Files) reload() {
	m, err := f.read()
	f.mu.Lock()
	if err != nil {
		if f.err == nil || f.err.Error() != err.Error() {
			f.cfg.Log.Warn("TLS files cannot be used", "error", err, "last_good_in_use", f.current != nil)
		}
		f.err = err
		f.mu.Unlock()
		return
	}
	f.err = nil
	same := f.current != nil && bytes.Equal(m.RootsPEM, f.current.RootsPEM) &&
		bytes.Equal(m.CertPEM, f.current.CertPEM) && bytes.Equal(m.KeyPEM, f.current.KeyPEM)
	if !same {
		f.current = m
	}
	f.mu.Unlock()
	if !same {
		f.cfg.Log.Info("TLS files read", "not_after", m.NotAfter)
		f.Notify()
	}
}

func (f *Files) read() (*Material, error) {
	if f.cfg.RootFile == "" {
		return nil, errors.New("TLS files: no root certificate file is configured")
	}
	if (f.cfg.CertFile == "") != (f.cfg.KeyFile == "") {
		return nil, errors.New("TLS files: certificate file and key file must be given together")
	}
	roots, err := readFile("root certificate file", f.cfg.RootFile)
	if err != nil {
		return nil, err
	}
	m, err := NewMaterial(nil, nil, roots)
	if err != nil {
		return nil, fmt.Errorf("root certificate file %s: %w", f.cfg.RootFile, err)
	}
	if f.cfg.CertFile == "" {
		return m, nil
	}
	cert, err := readFile("certificate file", f.cfg.CertFile)
	if err != nil {
		return nil, err
	}
	key, err := readFile("key file", f.cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	if m, err = NewMaterial(cert, key, roots); err != nil {
		return nil, fmt.Errorf("certificate file %s and key file %s: %w", f.cfg.CertFile, f.cfg.KeyFile, err)
	}
	return m, nil
}

// maxFile bounds a file in bytes.
const maxFile = 4 << 20

// readFile reads a regular file that is not empty.
func readFile(what, path string) ([]byte, error) {
	raw, err := fileio.ReadRegular(path, maxFile)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w", what, path, err)
	case len(raw) == 0:
		return nil, fmt.Errorf("%s %s is empty", what, path)
	}
	return raw, nil
}
