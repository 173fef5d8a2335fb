// Package serving gives the ca its own certificate. The ca is its own first client: the same policy and signer decide and sign, so that its certificate has
// the form that every other one has, and other services verify it like any peer's.
package serving

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/csr"
	"fairlead.dev/services/ca/internal/policy"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/trust"
)

// retryAfter is the pause after a failed renewal; at half of a certificate's life there is time for many.
const retryAfter = 10 * time.Second

// Config of the certificate. All fields are required.
type Config struct {
	// Identity is the ca's own.
	Identity  spiffeid.ID
	Policy    *policy.Policy
	Signer    *signer.Signer
	Publisher *trust.Publisher
	Clock     clock.Clock
	Log       *slog.Logger
}

// Source is the ca's TLS material: its own certificate, and the published bundle to verify clients with. It implements tlsconf.Source.
type Source struct {
	tlsconf.Notifier
	cfg Config

	mu      sync.Mutex
	current *tlsconf.Material
	renewAt time.Time
}

var _ tlsconf.Source = (*Source)(nil)

// New makes a source without a certificate; Renew issues the first.
func New(cfg Config) *Source { return &Source{cfg: cfg} }

// Current is the newest material, or an error before the first Renew.
func (s *Source) Current() (*tlsconf.Material, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return nil, errors.New("the ca has not issued its own certificate yet")
	}
	return s.current, nil
}

// Renew issues a certificate for a new key and takes over the published roots.
func (s *Source) Renew() error {
	now := s.cfg.Clock.Now()
	material, err := s.issue(now)
	if err != nil {
		return fmt.Errorf("issue the ca's own certificate: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = material
	// Half of what is left, not of the certificate's nominal life: notBefore lies in the past. Never at once, or the last second before the root ends would
	// be spent issuing.
	s.renewAt = now.Add(max(material.NotAfter.Sub(now)/2, time.Second))
	s.Notify()
	return nil
}

func (s *Source) issue(now time.Time) (*tlsconf.Material, error) {
	bundle, _ := s.cfg.Publisher.Current()
	if bundle == nil {
		return nil, errors.New("no trust bundle is published")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	issuer := s.cfg.Signer.Issuer()
	template, err := s.cfg.Policy.Decide(policy.Ask{Caller: s.cfg.Identity, Proven: now, CSR: &csr.Request{PublicKey: &key.PublicKey}}, now,
		policy.Validity{NotBefore: issuer.NotBefore, NotAfter: issuer.NotAfter})
	if err != nil {
		return nil, err
	}
	issued, err := s.cfg.Signer.Sign(template)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	material, err := tlsconf.NewMaterial([]byte(issued.ChainPEM[0]), keyPEM, []byte(strings.Join(bundle.Roots, "")))
	if err != nil {
		return nil, err
	}
	s.cfg.Log.Info("own certificate issued", "identity", s.cfg.Identity.String(), "dns_names", issued.Certificate.DNSNames, "serial", issued.Serial(),
		"not_after", issued.Certificate.NotAfter)
	return material, nil
}

// Run renews at half of the certificate's life and whenever the bundle changes, until ctx ends. Renew has been called before.
func (s *Source) Run(ctx context.Context) error {
	for {
		bundle, bundleChanged := s.cfg.Publisher.Current()
		material, err := s.Current()
		if err != nil {
			return err
		}
		wait := s.untilRenewal()
		if wait <= 0 || strings.Join(bundle.Roots, "") != string(material.RootsPEM) {
			if err = s.Renew(); err == nil {
				continue
			}
			s.cfg.Log.Warn("own certificate not renewed, trying again", "error", err, "retry_after", retryAfter, "not_after", material.NotAfter)
			wait = retryAfter
		}
		select {
		case <-ctx.Done():
			return nil
		case <-bundleChanged:
		case <-s.cfg.Clock.After(wait):
		}
	}
}

func (s *Source) untilRenewal() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewAt.Sub(s.cfg.Clock.Now())
}
