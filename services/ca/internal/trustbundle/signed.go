package trustbundle

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/trust"
)

// Signatures signs bundles with the ca's own certificate, each once for each certificate. It is safe for concurrent
// use.
type Signatures struct {
	own   tlsconf.Source
	clock clock.Clock

	mu     sync.Mutex
	of     *Bundle
	by     *tlsconf.Material
	signed *cav1.SignedBundle
	// problem is that of signed.
	problem error
}

// NewSignatures makes a Signatures; own is the ca's certificate.
func NewSignatures(own tlsconf.Source, by clock.Clock) *Signatures {
	return &Signatures{own: own, clock: clock.Or(by)}
}

// Sign returns the signed form of a bundle, and a channel that is closed when there may be one with another
// certificate: receivers refuse what an expired one has signed.
func (s *Signatures) Sign(b *Bundle) (*cav1.SignedBundle, <-chan struct{}, error) {
	changed := s.own.Changed()
	material, err := s.own.Current()
	if err != nil {
		return nil, changed, err
	}
	if material.Certificate == nil {
		return nil, changed, errors.New("the ca has no certificate yet")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == b && s.by == material {
		return s.signed, changed, nil
	}
	signed, problem, err := sign(b, material.Certificate, s.clock.Now())
	if err != nil {
		return nil, changed, err
	}
	s.of, s.by, s.signed, s.problem = b, material, signed, problem
	return signed, changed, nil
}

// Problem is why the last bundle was signed without its revocation lists; nil if it has them.
func (s *Signatures) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// sign signs a bundle. Roots go before revocation lists: if the whole is larger than receivers take, the lists are left
// out, and problem tells it.
func sign(b *Bundle, own *tls.Certificate, now time.Time) (signed *cav1.SignedBundle, problem, err error) {
	text := &cav1.TrustBundle{
		TrustDomain: b.TrustDomain, Epoch: b.Epoch, Generation: b.Generation, TaintedKeyIds: b.Tainted, RevocationLists: b.CRLs,
		SignedAt: timestamppb.New(now),
	}
	for _, root := range b.Roots {
		block, _ := pem.Decode([]byte(root))
		if block == nil {
			return nil, nil, errors.New("a root of the bundle is no PEM")
		}
		text.RootCertificates = append(text.RootCertificates, block.Bytes)
	}
	signed, err = trust.Sign(text, own)
	if size := proto.Size(signed); err == nil && size > trust.MaxBytes && len(b.CRLs) > 0 {
		problem = fmt.Errorf("with its %d revocation lists the trust bundle has %d bytes, and agents take %d: they are left out, so that "+
			"agents do not refuse what was revoked; have the signer publish smaller lists", len(b.CRLs), size, trust.MaxBytes)
		text.RevocationLists = nil
		signed, err = trust.Sign(text, own)
	}
	return signed, problem, err
}
