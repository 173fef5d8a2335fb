// Package held signs leaves with a key that the ca may use, in this process. Each package that gets hold of such a key
// makes a Signer of it, which is an Issuer of package signer; package guard calls Signer.Issue. As a
// second check it signs no certificate authority, no certificate without a URI, and none that outlives what verifies
// it.
package held

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"time"

	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/tokentime"
)

// ErrNoSigner means that there is nothing to sign with yet.
var ErrNoSigner = signer.Errorf(signer.Away, "the ca has no certificate and key to sign with yet")

// Signer signs with one Authority, which never changes. It is safe for concurrent use, if the key is.
type Signer struct {
	issuer      *x509.Certificate
	key         crypto.Signer
	quick       *quick // nil: x509.CreateCertificate signs
	random      io.Reader
	authorities signer.Authorities
	// never is never closed.
	never chan struct{}
}

var _ signer.Issuer = (*Signer)(nil)

// New makes a Signer of a root's certificate and key, which must match.
func New(root *x509.Certificate, key crypto.Signer) *Signer {
	return signerFor(&Authority{Certificate: root, Key: key, Roots: []*x509.Certificate{root}}, root.NotBefore, root.NotAfter)
}

// NewIssuer makes a Signer. It returns an error if the key is not the certificate's, or the chain leads to no root.
func NewIssuer(a Authority) (*Signer, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	path := a.Path()
	if path == nil {
		return nil, fmt.Errorf("the chain of %q leads to none of the %d roots", a.Certificate.Subject, len(a.Roots))
	}
	notBefore, notAfter := signer.Window(path)
	return signerFor(&a, notBefore, notAfter), nil
}

func signerFor(a *Authority, notBefore, notAfter time.Time) *Signer {
	return &Signer{
		issuer: a.Certificate, key: a.Key, quick: newQuick(a.Certificate, a.Key), random: rand.Reader, never: make(chan struct{}),
		authorities: signer.Authorities{
			Roots: a.Roots, Intermediates: a.intermediates(), NotBefore: notBefore, NotAfter: notAfter, CRLs: a.CRLs,
		},
	}
}

// Issuer is the certificate that verifies the leaves.
func (s *Signer) Issuer() *x509.Certificate { return s.issuer }

// Authorities implements signer.Issuer.
func (s *Signer) Authorities() (*signer.Authorities, <-chan struct{}) { return &s.authorities, s.never }

// Capabilities implements signer.Issuer: the leaf gets whatever the template says.
func (*Signer) Capabilities() signer.Capabilities { return Capabilities() }

// Capabilities are those of every Signer.
func Capabilities() signer.Capabilities {
	return signer.Capabilities{Extensions: true, NamesBesideCSR: true, Validity: true}
}

// Run implements signer.Issuer: nothing changes.
func (*Signer) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Issue implements signer.Issuer. Like istiod with a key of its own, it gives the same leaf whatever Profile asks for.
func (s *Signer) Issue(ctx context.Context, r *signer.Request) ([]*x509.Certificate, error) {
	if err := ctx.Err(); err != nil {
		return nil, signer.Errorf(signer.Away, "the request ended before the certificate was signed: %w", err)
	}
	leaf, err := s.sign(r.Template)
	if err != nil {
		return nil, err
	}
	chain := make([]*x509.Certificate, 1, 1+len(s.authorities.Intermediates))
	chain[0] = leaf
	return append(chain, s.authorities.Intermediates...), nil
}

// Fits reports whether the authority is valid for as long as the template.
func (s *Signer) Fits(t *x509.Certificate) bool {
	return !t.NotBefore.Before(s.authorities.NotBefore) && !t.NotAfter.After(s.authorities.NotAfter)
}

// sign signs the template, whose PublicKey, names and validity are set and whose serial number is not. It lets
// crypto/x509 choose the algorithm of the signature: that of the key, with the hash that fits its size.
func (s *Signer) sign(template *x509.Certificate) (*x509.Certificate, error) {
	if err := s.check(template); err != nil {
		return nil, signer.Errorf(signer.Refused, "refusing to sign: %w", err)
	}
	serial, err := s.serial()
	if err != nil {
		return nil, err
	}
	numbered := *template
	numbered.SerialNumber, numbered.SignatureAlgorithm = serial, x509.UnknownSignatureAlgorithm
	der, err := s.create(&numbered)
	if err != nil {
		if known, ok := errors.AsType[*signer.Error](err); ok { // of a key that is elsewhere
			return nil, known
		}
		return nil, signer.Errorf(signer.Away, "sign certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, signer.Errorf(signer.Refused, "read back the signed certificate: %w", err)
	}
	return leaf, nil
}

// create returns the certificate in DER. x509.CreateCertificate verifies the signature that it has made, so that a key
// elsewhere which signs wrongly is noticed here.
func (s *Signer) create(t *x509.Certificate) ([]byte, error) {
	if s.quick != nil && s.quick.knows(t) {
		return s.quick.create(t, s.issuer, s.random)
	}
	return x509.CreateCertificate(s.random, t, s.issuer, t.PublicKey, s.key)
}

func (s *Signer) check(t *x509.Certificate) error {
	switch {
	case t.PublicKey == nil:
		return errors.New("the template has no public key")
	case t.IsCA || t.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return errors.New("the template is a certificate authority")
	case len(t.URIs) != 1:
		return errors.New("the template has not exactly one URI")
	case len(t.ExtraExtensions) > 1 || len(t.ExtraExtensions) == 1 && !t.ExtraExtensions[0].Id.Equal(tokentime.OID):
		return errors.New("the template has extensions other than the time of the last token")
	case !s.Fits(t):
		return errors.New("the template is valid outside the validity of the issuer, its chain and its root")
	case !t.NotAfter.After(t.NotBefore):
		return errors.New("the template is never valid")
	}
	return nil
}

// serial is 128 random bits with the top bit clear (RFC 5280, 4.1.2.2: positive, at most 20 octets) and never zero.
func (s *Signer) serial() (*big.Int, error) {
	var b [16]byte
	if _, err := io.ReadFull(s.random, b[:]); err != nil {
		return nil, signer.Errorf(signer.Away, "serial number: %w", err)
	}
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:]), nil
}
