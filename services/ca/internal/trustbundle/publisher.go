package trustbundle

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
)

// Bundle is one generation of the trust bundle. It is immutable.
type Bundle struct {
	TrustDomain string
	// Epoch grows when a ca is restored from a backup, Generation with every change within an epoch.
	Epoch, Generation uint64
	// Roots are PEM texts of one certificate each, sorted, without duplicates; PEM has all of them.
	Roots []string
	PEM   string
	// Tainted are authority key identifiers of certificates that their holders replace now.
	Tainted [][]byte
	// CRLs are lists of revoked certificates in DER. They change within a generation.
	CRLs [][]byte
}

func (b *Bundle) point() point { return point{b.Epoch, b.Generation} }

// point is which generation a bundle is; the zero value is none.
type point struct{ epoch, generation uint64 }

func (p point) compare(other point) int {
	return cmp.Or(cmp.Compare(p.epoch, other.epoch), cmp.Compare(p.generation, other.generation))
}

// Own are the roots that a ca's signers need, in PEM.
type Own struct {
	Roots []string
	// Whole is true if they are the whole bundle, as another replica has published it.
	Whole bool
}

// Numbered is what a bundle has besides its roots.
type Numbered struct {
	Epoch, Generation uint64
	Tainted, CRLs     [][]byte
}

// Numberer numbers a bundle: own are the roots of the ca's signers among all. For the same content it returns the same
// generation, and a greater one for another.
type Numberer func(ctx context.Context, own, all []string) (Numbered, error)

// Publisher holds the current bundle; Manager publishes, Server and servercert.Source read. It is safe for concurrent
// use.
type Publisher struct {
	trustDomain string
	number      Numberer

	mu      sync.Mutex
	current *Bundle
	changed notify.Notifier
}

// NewPublisher makes a Publisher that has no bundle until the first Publish.
func NewPublisher(trustDomain string, number Numberer) *Publisher {
	return &Publisher{trustDomain: trustDomain, number: number}
}

// Publish makes the roots the current bundle. If it differs from the one before, the channels that Current returned are
// closed. Publish must not be called concurrently with itself.
func (p *Publisher) Publish(ctx context.Context, own, all []string) error {
	own, all = sorted(own), sorted(all)
	if len(all) == 0 {
		return errors.New("a bundle without roots would make every certificate invalid")
	}
	n, err := p.number(ctx, own, all)
	if err != nil {
		return fmt.Errorf("number the trust bundle: %w", err)
	}
	equal := func(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.current; c != nil && c.Epoch == n.Epoch && c.Generation == n.Generation && slices.Equal(c.Roots, all) &&
		equal(c.Tainted, n.Tainted) && equal(c.CRLs, n.CRLs) {
		return nil
	}
	p.current = &Bundle{TrustDomain: p.trustDomain, Epoch: n.Epoch, Generation: n.Generation, Roots: all, PEM: strings.Join(all, ""),
		Tainted: n.Tainted, CRLs: n.CRLs}
	p.changed.Notify()
	return nil
}

func sorted(roots []string) []string { return slices.Compact(slices.Sorted(slices.Values(roots))) }

// Current returns the bundle, nil before the first Publish, and a channel that is closed when the next one replaces it.
func (p *Publisher) Current() (*Bundle, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current, p.changed.Changed()
}

// ParseRoots reads a PEM file of root certificates and returns each as a PEM text of its own.
func ParseRoots(text []byte) ([]string, error) {
	certs, err := tlsconf.ParseAuthorities(text)
	if err != nil {
		return nil, err
	}
	var roots []string
	for _, cert := range certs {
		roots = append(roots, tlsconf.EncodeCertificate(cert))
	}
	return roots, nil
}
