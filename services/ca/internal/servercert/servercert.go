// Package servercert issues and renews the ca's own server certificate, which the gRPC port presents. Policy and signer
// of workload certificates decide and sign it too, so other services verify it like any peer's.
//
// Package app calls New, Renew once before the port opens, and Run. The port reads Source as a tlsconf.Source.
package servercert

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
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/csr"
	"fairlead.dev/services/ca/internal/policy"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/trustbundle"
)

// retryAfter is the pause after a failed renewal. Renewal starts at half of a certificate's life, so there is time for
// many.
const retryAfter = 10 * time.Second

// Config of the certificate. All fields are required.
type Config struct {
	// Identity is the ca's own SPIFFE ID.
	Identity  spiffeid.ID
	Policy    *policy.Policy
	Signer    *authority.Authority
	Publisher *trustbundle.Publisher
	Clock     clock.Clock
	Log       *slog.Logger
}

// Source holds the ca's TLS material: its server certificate, and the published trust bundle that verifies clients. It
// implements tlsconf.Source and is safe for concurrent use.
type Source struct {
	notify.Notifier
	cfg Config

	mu      sync.Mutex
	current *tlsconf.Material
	renewAt time.Time
	// signer is the ID of the one that issued current.
	signer uint64
}

var _ tlsconf.Source = (*Source)(nil)

// New makes a Source without a certificate. Renew issues the first one.
func New(cfg Config) *Source { return &Source{cfg: cfg} }

// Current returns the newest material, and an error before the first Renew.
func (s *Source) Current() (*tlsconf.Material, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return nil, errors.New("the ca has not issued its own certificate yet")
	}
	return s.current, nil
}

// Renew issues a certificate for a new key, together with the roots published now, and notifies the users of the
// Source.
func (s *Source) Renew(ctx context.Context) error {
	now := s.cfg.Clock.Now()
	material, by, err := s.issue(ctx, now)
	if err != nil {
		return fmt.Errorf("issue the ca's own certificate: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.signer = material, by
	// Half of the time left, since notBefore lies in the past. At least a second, so that the ca does not issue without
	// pause in the last second before the root expires.
	s.renewAt = now.Add(max(material.NotAfter.Sub(now)/2, time.Second))
	s.Notify()
	return nil
}

func (s *Source) issue(ctx context.Context, now time.Time) (*tlsconf.Material, uint64, error) {
	bundle, _ := s.cfg.Publisher.Current()
	if bundle == nil {
		return nil, 0, errors.New("no trust bundle is published")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, 0, err
	}
	session, err := s.cfg.Signer.Begin()
	if err != nil {
		return nil, 0, err
	}
	issuer, err := session.Bounds()
	if err != nil {
		return nil, 0, err
	}
	template, err := s.cfg.Policy.Decide(policy.Request{Caller: s.cfg.Identity, TokenTime: now, CSR: &csr.Request{PublicKey: &key.PublicKey}},
		now, issuer)
	if err != nil {
		return nil, 0, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		URIs: template.URIs, DNSNames: template.DNSNames, IPAddresses: template.IPAddresses,
	}, key)
	if err != nil {
		return nil, 0, err
	}
	issued, err := session.Issue(ctx, &signer.Request{Template: template, CSR: request, Identity: s.cfg.Identity})
	if err != nil {
		return nil, 0, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, 0, err
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	material, err := tlsconf.NewMaterial([]byte(strings.Join(issued.ChainPEM[:len(issued.ChainPEM)-1], "")), keyPEM,
		[]byte(bundle.PEM))
	if err != nil {
		return nil, 0, err
	}
	s.cfg.Log.Info("own certificate issued", "identity", s.cfg.Identity.String(), "dns_names", issued.Certificate.DNSNames, "serial",
		issued.Serial(), "not_after", issued.Certificate.NotAfter)
	return material, issued.Signer, nil
}

// Run renews at half of the certificate's life, and whenever the bundle or the signer changes, until ctx ends. A failed
// renewal is logged and tried again after retryAfter. The caller has called Renew before.
func (s *Source) Run(ctx context.Context) error {
	for {
		bundle, bundleChanged := s.cfg.Publisher.Current()
		signerChanged := s.cfg.Signer.Changed()
		material, err := s.Current()
		if err != nil {
			return err
		}
		wait := s.untilRenewal()
		if wait <= 0 || bundle.PEM != string(material.RootsPEM) || !s.bySigner(s.cfg.Signer.ID()) {
			if err = s.Renew(ctx); err == nil {
				continue
			}
			s.cfg.Log.Warn("own certificate not renewed, trying again", "error", err, "retry_after", retryAfter, "not_after", material.NotAfter)
			wait = retryAfter
		}
		select {
		case <-ctx.Done():
			return nil
		case <-bundleChanged:
		case <-signerChanged:
		case <-s.cfg.Clock.After(wait):
		}
	}
}

// bySigner reports whether the certificate was issued by this signer.
func (s *Source) bySigner(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signer == id
}

func (s *Source) untilRenewal() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewAt.Sub(s.cfg.Clock.Now())
}
