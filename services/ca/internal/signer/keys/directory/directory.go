// Package directory is the KeyManager of keys in files: NAME.pem in a directory that only the ca's user can enter. Each
// is PEM of PKCS#8, with mode 0600. A process that is killed at any moment leaves each key whole or absent. Processes
// on one machine may use one directory; other replicas of the ca do not find the keys.
package directory

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/ca/internal/private"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/keys"
)

const (
	lockName = "lock"
	// lockTimeout bounds the wait for another process that makes or deletes a key.
	lockTimeout = 10 * time.Second
)

// Config says where the keys are.
type Config struct {
	// Dir is made if it is missing; its parent must exist.
	Dir string `json:"dir"`
}

// Check returns an error if the configuration cannot be used.
func (c *Config) Check() error {
	if c.Dir == "" {
		return errors.New("dir: is required; name the directory with the keys")
	}
	if !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("dir: %q is relative; write the whole path", c.Dir)
	}
	return nil
}

// Manager is a signer.KeyManager.
type Manager struct {
	dir string
	fs  fileio.FS
}

var _ signer.KeyManager = (*Manager)(nil)

// New returns the KeyManager of a directory, which it does not touch yet.
func New(cfg Config) *Manager { return NewOn(fileio.FS{}, cfg) }

// NewOn is New on another file system than the operating system's.
func NewOn(disk fileio.FS, cfg Config) *Manager { return &Manager{dir: cfg.Dir, fs: disk} }

// Shared implements signer.KeyManager.
func (*Manager) Shared() bool { return false }

func (m *Manager) path(name string) string { return filepath.Join(m.dir, name+".pem") }

// Make implements signer.KeyManager.
func (m *Manager) Make(ctx context.Context, name string, a signer.Algorithm) (crypto.Signer, error) {
	if err := errors.Join(keys.CheckName(name), keys.CheckAlgorithm(a)); err != nil {
		return nil, err
	}
	if err := m.free(name); err != nil {
		return nil, err
	}
	// A long RSA key takes seconds, in which nobody need wait for the lock.
	key, err := keys.Generate(a)
	if err != nil {
		return nil, err
	}
	text, err := keys.Encode(key)
	if err != nil {
		return nil, err
	}
	if err := private.EnsureDir(m.dir); err != nil {
		return nil, err
	}
	unlock, err := m.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := m.free(name); err != nil {
		return nil, err
	}
	if err := m.fs.Replace(m.path(name), text); err != nil {
		return nil, fmt.Errorf("write the key %s: %w", m.path(name), err)
	}
	return key, nil
}

// free returns ErrKeyExists if there is anything under the name.
func (m *Manager) free(name string) error {
	_, err := os.Lstat(m.path(name))
	switch {
	case err == nil:
		return fmt.Errorf("%s: %w", m.path(name), signer.ErrKeyExists)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// lock locks the directory, and removes what a process that was killed has left half written.
func (m *Manager) lock(ctx context.Context) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	unlock, err = private.Lock(ctx, filepath.Join(m.dir, lockName), lockTimeout)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(m.dir)
	for _, e := range entries {
		if fileio.Temporary(e.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(m.dir, e.Name())))
		}
	}
	if err != nil {
		unlock()
		return nil, fmt.Errorf("remove unfinished keys: %w", err)
	}
	return unlock, nil
}

// Find implements signer.KeyManager.
func (m *Manager) Find(_ context.Context, name string) (crypto.Signer, error) {
	if err := keys.CheckName(name); err != nil {
		return nil, err
	}
	absent := fmt.Errorf("%s: %w", m.path(name), signer.ErrNoKey)
	err := private.CheckDir(m.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, absent
	}
	if err != nil {
		return nil, err
	}
	text, err := private.Read(m.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, absent
	}
	if err != nil {
		return nil, err
	}
	key, err := keys.Decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; restore the file from a backup, or move it away to get a new key", m.path(name), err)
	}
	return key, nil
}

// Delete implements signer.KeyManager.
func (m *Manager) Delete(ctx context.Context, name string) error {
	if err := keys.CheckName(name); err != nil {
		return err
	}
	err := private.CheckDir(m.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	unlock, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.fs.Remove(m.path(name)); err != nil {
		return fmt.Errorf("delete the key %s: %w", m.path(name), err)
	}
	return nil
}
