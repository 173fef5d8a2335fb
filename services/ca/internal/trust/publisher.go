// Package trust distributes the bundle of root certificates in numbered generations, and records which subscribers have
// acknowledged which generation.
package trust

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"

	"fairlead.dev/pkg/tlsconf"
)

// Bundle is one generation. It is immutable.
type Bundle struct {
	TrustDomain string
	Generation  uint64
	// Roots are in PEM, one certificate each, sorted by content, without duplicates.
	Roots []string
}

// Numberer returns the generation of a bundle: the same for the same roots, and a greater one for other roots.
type Numberer func(ctx context.Context, roots []string) (uint64, error)

// Publisher holds the current bundle. It is safe for concurrent use.
type Publisher struct {
	trustDomain string
	number      Numberer

	mu      sync.Mutex
	current *Bundle
	changed chan struct{}
}

// NewPublisher makes a publisher that has no bundle until the first Publish.
func NewPublisher(trustDomain string, number Numberer) *Publisher {
	return &Publisher{trustDomain: trustDomain, number: number, changed: make(chan struct{})}
}

// Publish makes the roots the current bundle and wakes the watches if it is a new generation. It must not be called concurrently with itself.
func (p *Publisher) Publish(ctx context.Context, roots []string) error {
	sorted := slices.Compact(slices.Sorted(slices.Values(roots)))
	if len(sorted) == 0 {
		return errors.New("a bundle without roots would make every certificate invalid")
	}
	if current, _ := p.Current(); current != nil && slices.Equal(current.Roots, sorted) {
		return nil
	}
	generation, err := p.number(ctx, sorted)
	if err != nil {
		return fmt.Errorf("number the trust bundle: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = &Bundle{TrustDomain: p.trustDomain, Generation: generation, Roots: sorted}
	close(p.changed)
	p.changed = make(chan struct{})
	return nil
}

// Current is the bundle, nil before the first Publish, and a channel that is closed when it is replaced.
func (p *Publisher) Current() (*Bundle, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current, p.changed
}

// ParseRoots reads the certificates of a PEM file of root certificates, each returned as a PEM text of its own.
func ParseRoots(text []byte) ([]string, error) {
	certs, err := tlsconf.ParseAuthorities(text)
	if err != nil {
		return nil, err
	}
	var roots []string
	for _, cert := range certs {
		roots = append(roots, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})))
	}
	return roots, nil
}
