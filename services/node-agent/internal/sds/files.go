package sds

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/filewatch"
	"fairlead.dev/pkg/tlsconf"
)

// Names of secrets in files of the workload's file system are these and the path, of a pair both with pairSeparator between them. They are
// those of Istio's agent, but for authorities with a list of what they revoked: a pair as well, so that Envoy has no file to miss.
const (
	pairPrefix    = "file-cert:"
	rootPrefix    = "file-root:"
	pairSeparator = "~"
	// systemRoots is the path of the authorities that the operating system trusts.
	systemRoots = "system"
)

// How often files are read again though no change was seen, usually and while some cannot be used.
const (
	reread      = 30 * time.Second
	rereadSoon  = time.Second
	maxFileSize = 4 << 20
)

// systemFiles are where operating systems keep the authorities they trust.
var systemFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// files follows the files whose secrets somebody has subscribed to. Of files that are missing, broken or half replaced the last good secret
// stays; there is none before the first.
type files struct {
	tlsconf.Notifier
	log   *slog.Logger
	clock clock.Clock
	// wake is sent to when there are more files.
	wake chan struct{}

	mu      sync.Mutex
	secrets map[string]*fileSecret
}

// fileSecret is a secret made of files.
type fileSecret struct {
	// cert and key, or root and perhaps crl.
	cert, key, root, crl string
	users                int
	last                 *resource
	trouble              string
}

func newFiles(log *slog.Logger, c clock.Clock) *files {
	return &files{log: log, clock: clock.Or(c), wake: make(chan struct{}, 1), secrets: map[string]*fileSecret{}}
}

// parse reads a secret's name, nil if it is none of files.
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

// use starts to follow a name's files, and reads them at once; false if it is no name of files.
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
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
	f.secrets[name].users++
	return true
}

// drop ends a use.
func (f *files) drop(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.secrets[name]; s != nil {
		if s.users--; s.users == 0 {
			delete(f.secrets, name)
		}
	}
}

// get is a name's secret, nil while there is none.
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
	filewatch.Follower{Files: f.paths, Read: f.readAll, Wake: f.wake, Clock: f.clock, Log: f.log}.Run(ctx)
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

// readAll reads every file and says when to do so next.
func (f *files) readAll() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	next, changed := reread, false
	for name, s := range f.secrets {
		changed = f.read(name, s) || changed
		if s.trouble != "" {
			next = rereadSoon
		}
	}
	if changed {
		f.Notify()
	}
	return next
}

// read reads a secret's files and says whether it is another one. f.mu is held.
func (f *files) read(name string, s *fileSecret) (changed bool) {
	next, err := s.load(name)
	if err != nil {
		if text := err.Error(); text != s.trouble {
			s.trouble = text
			f.log.Warn("certificate files cannot be used", "secret", name, "error", err, "last_good_in_use", s.last != nil)
		}
		return false
	}
	s.trouble = ""
	if s.last != nil && s.last.version == next.version {
		return false
	}
	s.last = next
	f.log.Info("certificate files read", "secret", name)
	return true
}

// load makes the secret of the files as they are.
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

// checkCRL finds what Envoy would refuse.
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

// readFile reads a regular file of bearable size.
func readFile(path string) ([]byte, error) {
	f, err := fileio.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := fileio.ReadAll(f, maxFileSize)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return bytes.TrimSpace(raw), nil
}
