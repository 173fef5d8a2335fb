package upstream

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/ca/internal/signer"
)

// Trust holds what verifies the certificates of a service, for Issuer.Authorities. It is safe for concurrent use.
type Trust struct {
	clock clock.Clock

	changes notify.Notifier
	mu      sync.Mutex
	current *signer.Authorities
	// announced is true if the intermediates are those that the service announced; Learn then leaves them.
	announced bool
	// path identifies what signed the last certificate that Learn saw; learned is when Learn last changed current.
	path    []byte
	learned time.Time
}

// NewTrust returns a Trust without roots.
func NewTrust(c clock.Clock) *Trust { return &Trust{clock: clock.Or(c)} }

// Authorities implements the method of signer.Issuer.
func (t *Trust) Authorities() (*signer.Authorities, <-chan struct{}) {
	changed := t.changes.Changed()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current, changed
}

// Set replaces what is known by what a service or a file says. Roots that have expired are left out. intermediates are
// empty if nobody says which there are; Learn finds them then. After an error the last state stays.
func (t *Trust) Set(roots, intermediates []*x509.Certificate, crls [][]byte) error {
	now := t.clock.Now()
	valid := slices.DeleteFunc(slices.Clone(roots), func(c *x509.Certificate) bool { return !now.Before(c.NotAfter) })
	if len(valid) == 0 {
		return errors.New("there is no root certificate that has not expired")
	}
	next := &signer.Authorities{Roots: valid, Intermediates: intermediates, CRLs: crls}
	needed := slices.DeleteFunc(slices.Clone(valid), func(c *x509.Certificate) bool { return now.Before(c.NotBefore) })
	if len(needed) == 0 {
		return fmt.Errorf("no root certificate is valid before %s; compare the clocks", valid[0].NotBefore.UTC().Format(time.RFC3339))
	}
	if len(intermediates) > 0 {
		var err error
		if needed, err = pathOf(intermediates, valid, now); err != nil {
			return fmt.Errorf("the intermediate certificates do not verify with the roots: %w", err)
		}
	}
	next.NotBefore, next.NotAfter = signer.Window(needed)
	t.mu.Lock()
	t.announced = len(intermediates) > 0
	if !t.announced {
		t.keep(next, now)
	}
	same := next.Equal(t.current)
	if !same {
		t.current = next
	}
	t.mu.Unlock()
	if !same {
		t.changes.Notify()
	}
	return nil
}

// keep copies what Learn found into the next state, unless other roots make it wrong. mu is held.
func (t *Trust) keep(next *signer.Authorities, now time.Time) {
	if t.current == nil {
		return
	}
	if sameCertificates(t.current.Roots, next.Roots) {
		next.Intermediates, next.NotBefore, next.NotAfter = t.current.Intermediates, t.current.NotBefore, t.current.NotAfter
		return
	}
	if len(t.current.Intermediates) > 0 {
		if path, err := pathOf(t.current.Intermediates, next.Roots, now); err == nil {
			next.Intermediates = t.current.Intermediates
			next.NotBefore, next.NotAfter = signer.Window(path)
			return
		}
	}
	t.path = nil
}

// learnEvery bounds how often Learn changes what is known, for a service that answers with one chain and then another.
const learnEvery = 10 * time.Second

// Learn takes the intermediates from a chain that a service issued, unless the service announces them. It does nothing
// with a chain that no root verifies.
func (t *Trust) Learn(chain []*x509.Certificate) {
	path := slices.Concat(chain[0].RawIssuer, chain[0].AuthorityKeyId)
	for _, c := range chain[1:] {
		path = append(path, c.Raw...)
	}
	now := t.clock.Now()
	t.mu.Lock()
	if t.current == nil || t.announced || bytes.Equal(path, t.path) || t.path != nil && now.Sub(t.learned) < learnEvery {
		t.mu.Unlock()
		return
	}
	found, err := pathOf(chain, t.current.Roots, now)
	if err != nil || len(found) < 2 {
		t.mu.Unlock()
		return
	}
	next := *t.current
	// Without the leaf, and without the root, which is the last.
	next.Intermediates = slices.Clone(found[1 : len(found)-1])
	next.NotBefore, next.NotAfter = signer.Window(found[1:])
	t.path, t.learned = path, now
	same := next.Equal(t.current)
	if !same {
		t.current = &next
	}
	t.mu.Unlock()
	if !same {
		t.changes.Notify()
	}
}

// pathOf verifies the first of the certificates by way of the others, and returns the path from it to a root.
func pathOf(certs, roots []*x509.Certificate, now time.Time) ([]*x509.Certificate, error) {
	pool, between := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range roots {
		pool.AddCert(c)
	}
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	paths, err := certs[0].Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return nil, err
	}
	return paths[0], nil
}

func sameCertificates(a, b []*x509.Certificate) bool {
	return slices.EqualFunc(a, b, (*x509.Certificate).Equal)
}

func equalCRLs(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }
