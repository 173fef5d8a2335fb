// Package store keeps the ca's self-signed root certificate and key on disk. Open makes them the first time, and from
// then on returns the same ones or an error that says how to repair the directory. Generation numbers trust bundles
// there, and ReadCertificate serves the command "ca root-cert". Package app calls the first two.
//
// Layout of the directory (0700, owned by the user the ca runs as):
//
//	lock             taken while the store is opened, so that two processes started at once agree on one root
//	root/key.pem     0600, PKCS#8
//	root/cert.pem    0600
//	bundle.json      0600, generation and digest of the trust bundle last served
//
// The folder root appears by one rename with both files in it, so a crash leaves either no root or a whole one.
package store

import (
	"cmp"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/services/ca/internal/private"
	"fairlead.dev/services/ca/internal/signer/keys"
)

// RootFolder is the folder of the root in the directory.
const RootFolder = "root"

const (
	keyName      = "key.pem"
	certName     = "cert.pem"
	bundleName   = "bundle.json"
	lockName     = "lock"
	newRootStart = ".root-"
)

// Config says where the root is and what it must look like.
type Config struct {
	// Dir is made if it is missing; its parent must exist.
	Dir string
	// TrustDomain of the root; one found on disk must have the same.
	TrustDomain spiffeid.TrustDomain
	// Aliases are trust domains that a root found on disk may have instead, because the mesh has had them before.
	Aliases []spiffeid.TrustDomain
	// RootTTL is the lifetime of a root made now.
	RootTTL time.Duration
	// Now is when a root made by this call becomes valid, and the time that a root found on disk must be valid at.
	Now time.Time
	// FS is the file system; the zero value is the operating system's.
	FS fileio.FS
	// LockTimeout bounds the wait for another process that opens the same directory; 10 s if 0.
	LockTimeout time.Duration
}

// Root is the issuer of every certificate.
type Root struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
	CertPEM     []byte
	// Created reports whether this call made the root.
	Created bool
}

// Open loads the root, or makes it if the directory has none.
func Open(ctx context.Context, cfg Config) (*Root, error) {
	if err := private.EnsureDir(cfg.Dir); err != nil {
		return nil, err
	}
	cfg.LockTimeout = cmp.Or(cfg.LockTimeout, 10*time.Second)
	unlock, err := private.Lock(ctx, filepath.Join(cfg.Dir, lockName), cfg.LockTimeout)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeUnfinished(cfg.Dir); err != nil {
		return nil, err
	}
	folder := filepath.Join(cfg.Dir, RootFolder)
	created := false
	if _, err := os.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
		if err := create(cfg); err != nil {
			return nil, fmt.Errorf("make a root in %s: %w", cfg.Dir, err)
		}
		created = true
	} else if err != nil {
		return nil, err
	}
	root, err := load(folder, cfg)
	if err != nil {
		return nil, err
	}
	root.Created = created
	return root, nil
}

// ReadCertificate returns the PEM of the public root in dir, without the key, the lock or a change to anything.
func ReadCertificate(dir string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(dir, RootFolder, certName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no root in %s: the ca makes one when it first starts with this directory", dir)
	}
	return text, err
}

// removeUnfinished deletes the folders of processes that died while making a root. The caller holds the lock, so no
// other process is making one.
func removeUnfinished(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newRootStart) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove unfinished root: %w", err)
			}
		}
	}
	return nil
}

// create writes key and certificate into a folder of their own and renames it into place.
func create(cfg Config) (err error) {
	key, der, err := newRoot(cfg.TrustDomain, cfg.Now, cfg.RootTTL)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp(cfg.Dir, newRootStart)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(folder))
		}
	}()
	keyPEM, err := keys.Encode(key)
	if err != nil {
		return err
	}
	if err := cfg.FS.Replace(filepath.Join(folder, keyName), keyPEM); err != nil {
		return err
	}
	if err := cfg.FS.Replace(filepath.Join(folder, certName), encodeCertificate(der)); err != nil {
		return err
	}
	if err := cfg.FS.Rename(folder, filepath.Join(cfg.Dir, RootFolder)); err != nil {
		return err
	}
	return cfg.FS.SyncDir(cfg.Dir)
}
