package svid

import (
	"crypto"
	"crypto/tls"
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

// Names of the files in a directory of key, certificate chain and roots, which are those of Istio's agent.
const (
	ChainFile = "cert-chain.pem"
	KeyFile   = "key.pem"
	RootsFile = "root-cert.pem"
)

// maxFile bounds what is read of a file with a key or a chain.
const maxFile = 1 << 20

// restore adopts the first certificate that is valid of those kept by an earlier run, in CacheDir or RestoreDir, and
// returns when it must be renewed; now if there is none.
func (m *Manager) restore() time.Time {
	now := m.cfg.Clock.Now()
	for _, from := range []struct {
		path string
		load func(string, KeyType) (*identity, error)
	}{{join(m.cfg.CacheDir, CacheFile), load}, {m.cfg.RestoreDir, loadDir}} {
		if from.path == "" {
			continue
		}
		id, err := from.load(from.path, m.cfg.Key)
		if err == nil {
			var roots, rootsErr = m.roots.Current()
			if err = rootsErr; err == nil {
				err = id.verify(roots.Roots, m.cfg.Identity, now)
			}
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			m.cfg.Log.Warn("kept certificate is not used", "path", from.path, "error", err)
			continue
		}
		m.adopt(id)
		next := m.renewalTime(id.leaf.NotBefore, id.leaf.NotAfter)
		m.cfg.Log.Info("kept certificate is used", "identity", m.cfg.Identity.String(), "path", from.path, "not_after", id.leaf.NotAfter,
			"renew_at", next)
		return next
	}
	return now
}

// join is "" for no directory.
func join(dir, file string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, file)
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

// load reads key and chain from one file.
func load(path string, encoding KeyType) (*identity, error) {
	raw, err := readKey(path)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(raw)
	if block == nil || block.Type == typeCertificate {
		return nil, fmt.Errorf("%s does not begin with a private key", path)
	}
	return parse(path, pem.EncodeToMemory(block), rest, encoding)
}

// loadDir reads ChainFile and KeyFile of a directory.
func loadDir(dir string, encoding KeyType) (*identity, error) {
	path := filepath.Join(dir, KeyFile)
	key, err := readKey(path)
	if err != nil {
		return nil, err
	}
	chain, err := fileio.Read(filepath.Join(dir, ChainFile), maxFile)
	if err != nil {
		return nil, err
	}
	return parse(path, key, chain, encoding)
}

// readKey reads a file that only its owner may read.
func readKey(path string) ([]byte, error) {
	f, err := fileio.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %04o: others can read the key, remove the file", path, mode)
	}
	raw, err := fileio.ReadAll(f, maxFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return raw, nil
}

// parse makes an identity from PEM texts, of which path had the key.
func parse(path string, key, chain []byte, encoding KeyType) (*identity, error) {
	certs, err := tlsconf.ParseCertificates(chain)
	if err != nil {
		return nil, fmt.Errorf("%s: chain: %w", path, err)
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: private key cannot sign", path)
	}
	id, err := newIdentity(signer, certs, encoding)
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
