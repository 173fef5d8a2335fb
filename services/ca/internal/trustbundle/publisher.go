package trustbundle

import (
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
	Generation  uint64
	// Roots are PEM texts of one certificate each, sorted, without duplicates; PEM has all of them.
	Roots []string
	PEM   string
}

// Numberer returns the generation of a bundle: the same for the same roots, and a greater one for other roots.
type Numberer func(ctx context.Context, roots []string) (uint64, error)

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

// Publish makes the roots the current bundle. If they differ from those before, the bundle gets a new generation and
// the channels that Current returned are closed. Publish must not be called concurrently with itself.
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
	p.current = &Bundle{TrustDomain: p.trustDomain, Generation: generation, Roots: sorted, PEM: strings.Join(sorted, "")}
	p.changed.Notify()
	return nil
}

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
