package trustbundle

import (
	"encoding/pem"
	"errors"
	"sync"

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
	text := &cav1.TrustBundle{TrustDomain: b.TrustDomain, Generation: b.Generation, SignedAt: timestamppb.New(s.clock.Now())}
	for _, root := range b.Roots {
		block, _ := pem.Decode([]byte(root))
		if block == nil {
			return nil, changed, errors.New("a root of the bundle is no PEM")
		}
		text.RootCertificates = append(text.RootCertificates, block.Bytes)
	}
	signed, err := trust.Sign(text, material.Certificate)
	if err != nil {
		return nil, changed, err
	}
	s.of, s.by, s.signed = b, material, signed
	return signed, changed, nil
}
