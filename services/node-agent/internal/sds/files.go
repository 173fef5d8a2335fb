package sds

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/filewatch"
	"fairlead.dev/pkg/notify"
)

// The name of a secret of files is one of the prefixes and a path, or two paths with pairSeparator between them:
// certificate and key, or roots and revocation list. The names are those of Istio's agent, except for the revocation
// list, which Istio's agent leaves to Envoy to read.
const (
	pairPrefix    = "file-cert:"
	rootPrefix    = "file-root:"
	pairSeparator = "~"
	// systemRoots stands in place of a path for the roots that the operating system trusts.
	systemRoots = "system"
)

// Files are read again after reread although no change was seen, and after rereadSoon while some cannot be used.
const (
	reread      = 30 * time.Second
	rereadSoon  = time.Second
	maxFileSize = 4 << 20
)

// systemFiles are the files in which operating systems keep the roots that they trust.
var systemFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// files follows the files of the secrets that streams subscribe to, and notifies the streams of changes. While files
// are missing, malformed or replaced by half, their last good secret stays. It is safe for concurrent use.
type files struct {
	notify.Notifier
	log   *slog.Logger
	clock clock.Clock
	quiet time.Duration
	// wake makes run look at the list of files again.
	wake chan struct{}

	mu      sync.Mutex
	secrets map[string]*fileSecret
}

// fileSecret is a secret made of files.
type fileSecret struct {
	// cert and key are paths, or root and, optionally, crl.
	cert, key, root, crl string
	users                int
	last                 *resource
	problem              string
}

func newFiles(log *slog.Logger, c clock.Clock, quiet time.Duration) *files {
	return &files{log: log, clock: clock.Or(c), quiet: quiet, wake: make(chan struct{}, 1), secrets: map[string]*fileSecret{}}
}

// parse parses the name of a secret of files; nil for any other name.
func parse(name string) *fileSecret {
	if pair, ok := strings.CutPrefix(name, pairPrefix); ok {
		cert, key, ok := strings.Cut(pair, pairSeparator)
		if !ok || cert == "" || key == "" || strings.Contains(key, pairSeparator) {
			return nil
		}
		return &fileSecret{cert: cert, key: key}
	}
	if roots, ok := strings.CutPrefix(name, rootPrefix); ok {
		root, crl, list := strings.Cut(roots, pairSeparator)
		if root == "" || list && crl == "" || strings.Contains(crl, pairSeparator) {
			return nil
		}
		return &fileSecret{root: root, crl: crl}
	}
	return nil
}

// use adds a subscription to a name. The first one reads the files. It returns false if the name is not one of files.
func (f *files) use(name string) bool {
	s := parse(name)
	if s == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.secrets[name] == nil {
		f.secrets[name] = s
		f.read(name, s)
		notify.Wake(f.wake)
	}
	f.secrets[name].users++
	return true
}

// drop removes a subscription. The last one stops following the files.
func (f *files) drop(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.secrets[name]; s != nil {
		if s.users--; s.users == 0 {
			delete(f.secrets, name)
		}
	}
}

// get returns the secret of a name, nil while there is none.
func (f *files) get(name string) *resource {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.secrets[name]; s != nil {
		return s.last
	}
	return nil
}

// run follows the files until ctx ends.
func (f *files) run(ctx context.Context) error {
	filewatch.Follower{Files: f.paths, Read: f.readAll, Wake: f.wake, Debounce: f.quiet, Clock: f.clock, Log: f.log}.Run(ctx)
	return nil
}

// paths lists the files of all secrets.
func (f *files) paths() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, s := range f.secrets {
		for _, path := range []string{s.cert, s.key, s.root, s.crl} {
			if path != "" && path != systemRoots {
				out = append(out, path)
			}
		}
	}
	return out
}

// readAll reads all files and returns the time until it must be called again.
func (f *files) readAll() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	next, changed := reread, false
	for name, s := range f.secrets {
		changed = f.read(name, s) || changed
		if s.problem != "" {
			next = rereadSoon
		}
	}
	if changed {
		f.Notify()
	}
	return next
}

// read reads a secret's files and reports whether the secret has changed. f.mu is held.
func (f *files) read(name string, s *fileSecret) (changed bool) {
	next, err := s.load(name)
	if err != nil {
		if text := err.Error(); text != s.problem {
			s.problem = text
			f.log.Warn("certificate files cannot be used", "secret", name, "error", err, "last_good_in_use", s.last != nil)
		}
		return false
	}
	s.problem = ""
	if s.last != nil && s.last.version == next.version {
		return false
	}
	s.last = next
	f.log.Info("certificate files read", "secret", name)
	return true
}

// load makes the secret from the present content of the files.
func (s *fileSecret) load(name string) (*resource, error) {
	if s.root != "" {
		raw, err := s.roots()
		if err != nil {
			return nil, err
		}
		if !x509.NewCertPool().AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("%s: no PEM certificate in it", s.root)
		}
		if s.crl == "" {
			return &resource{name, version(raw), func() *tlsv3.Secret { return authorities(name, raw, nil) }}, nil
		}
		crl, err := readFile(s.crl)
		if err != nil {
			return nil, err
		}
		if err := checkCRL(crl); err != nil {
			return nil, fmt.Errorf("%s: %w", s.crl, err)
		}
		return &resource{name, version(slices.Concat(raw, crl)), func() *tlsv3.Secret { return authorities(name, raw, crl) }}, nil
	}
	cert, err := readFile(s.cert)
	if err != nil {
		return nil, err
	}
	key, err := readFile(s.key)
	if err != nil {
		return nil, err
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return nil, fmt.Errorf("%s and %s: %w", s.cert, s.key, err)
	}
	return &resource{name, version(cert), func() *tlsv3.Secret { return pair(name, cert, key) }}, nil
}

// checkCRL returns an error for a revocation list that Envoy would reject.
func checkCRL(raw []byte) error {
	lists := 0
	for {
		var block *pem.Block
		if block, raw = pem.Decode(raw); block == nil {
			break
		}
		if block.Type == "X509 CRL" {
			if _, err := x509.ParseRevocationList(block.Bytes); err != nil {
				return err
			}
			lists++
		}
	}
	if lists == 0 {
		return errors.New("no PEM revocation list in it")
	}
	return nil
}

// ReadCRL reads a file of revocation lists that Envoy takes. A file that does not exist has none, which is nil.
func ReadCRL(path string) ([]byte, error) {
	raw, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = checkCRL(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return raw, nil
}

func (s *fileSecret) roots() ([]byte, error) {
	if s.root != systemRoots {
		return readFile(s.root)
	}
	for _, path := range systemFiles {
		if raw, err := readFile(path); err == nil {
			return raw, nil
		}
	}
	return nil, errors.New("this system has no file of authorities that it trusts: install ca-certificates, or name one in caCertificates")
}

// readFile reads a regular file of at most maxFileSize.
func readFile(path string) ([]byte, error) {
	raw, err := fileio.ReadRegular(path, maxFileSize)
	if errors.Is(err, fileio.ErrTooLarge) {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return bytes.TrimSpace(raw), err
}
