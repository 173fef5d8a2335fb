package svid

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/tlsconf"
)

// CacheFile is the file in CacheDir with key and chain, which are replaced together.
const CacheFile = "svid.pem"

// restore adopts the cached certificate if it is valid, and returns when it must be renewed; now if there is none.
func (m *Manager) restore() time.Time {
	now := m.cfg.Clock.Now()
	if m.cfg.CacheDir == "" {
		return now
	}
	path := filepath.Join(m.cfg.CacheDir, CacheFile)
	id, err := load(path)
	if err == nil {
		var roots, rootsErr = m.roots.Current()
		if err = rootsErr; err == nil {
			err = id.verify(roots.Roots, m.cfg.Identity, now)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return now
	case err != nil:
		m.cfg.Log.Warn("cached certificate is not used", "file", path, "error", err)
		return now
	}
	m.adopt(id)
	next := m.renewalTime(id.leaf.NotBefore, id.leaf.NotAfter)
	m.cfg.Log.Info("cached certificate is used", "identity", m.cfg.Identity.String(), "not_after", id.leaf.NotAfter, "renew_at", next)
	return next
}

// keep writes id to the cache. It only logs an error, because the program has its certificate.
func (m *Manager) keep(id *identity) {
	if m.cfg.CacheDir == "" {
		return
	}
	if err := store(m.cfg.CacheDir, id); err != nil {
		m.cfg.Log.Warn("certificate cannot be cached for the next start", "error", err)
	}
}

func load(path string) (*identity, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %04o: others can read the key, remove the file", path, mode)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(raw)
	if block == nil || block.Type != typeKey {
		return nil, fmt.Errorf("%s does not begin with a private key", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: private key cannot be read", path)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: private key is not ECDSA", path)
	}
	certs, err := tlsconf.ParseCertificates(rest)
	if err != nil {
		return nil, fmt.Errorf("%s: chain: %w", path, err)
	}
	id, err := newIdentity(key, certs)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return id, nil
}

// store replaces the file atomically, and creates the directory, which must belong to its owner alone.
func store(dir string, id *identity) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("directory %s has mode %04o, must be 0700", dir, mode)
	}
	return fileio.Write(filepath.Join(dir, CacheFile), slices.Concat(id.keyPEM, id.certPEM), 0o600)
}
