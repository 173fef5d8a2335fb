// Package held signs the templates that package policy makes; packages issuance and servercert call Signer.Sign. As a
// second check it signs no certificate authority, no certificate without a URI, and none that outlives its issuer.
package held

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"

	"fairlead.dev/services/ca/internal/tokentime"
)

// Issued is a signed certificate.
type Issued struct {
	// Certificate is the leaf.
	Certificate *x509.Certificate
	// ChainPEM has the leaf first and the root last, one certificate each, as Istio's agent expects it.
	ChainPEM []string
}

// Serial is the serial number in hexadecimal, as the audit log and `openssl x509 -serial` write it.
func (i *Issued) Serial() string { return hex.EncodeToString(i.Certificate.SerialNumber.Bytes()) }

// Signer signs with one issuer. It is safe for concurrent use.
type Signer struct {
	issuer    *x509.Certificate
	issuerPEM string
	key       crypto.Signer
	random    io.Reader
}

// New makes a Signer of the issuer's certificate and key, which must match.
func New(issuer *x509.Certificate, key crypto.Signer) *Signer {
	return &Signer{issuer: issuer, issuerPEM: encodePEM(issuer.Raw), key: key, random: rand.Reader}
}

// Issuer is the certificate that verifies what Sign returns.
func (s *Signer) Issuer() *x509.Certificate { return s.issuer }

// Sign signs the template, whose PublicKey, names and validity are set and whose serial number is not.
func (s *Signer) Sign(template *x509.Certificate) (*Issued, error) {
	if err := s.check(template); err != nil {
		return nil, fmt.Errorf("refusing to sign: %w", err)
	}
	serial, err := s.serial()
	if err != nil {
		return nil, err
	}
	numbered := *template
	numbered.SerialNumber = serial
	der, err := x509.CreateCertificate(s.random, &numbered, s.issuer, template.PublicKey, s.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back the signed certificate: %w", err)
	}
	return &Issued{Certificate: leaf, ChainPEM: []string{encodePEM(der), s.issuerPEM}}, nil
}

func (s *Signer) check(t *x509.Certificate) error {
	switch {
	case t.PublicKey == nil:
		return errors.New("the template has no public key")
	case t.IsCA || t.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return errors.New("the template is a certificate authority")
	case len(t.URIs) != 1:
		return fmt.Errorf("the template has %d URIs, wanted 1", len(t.URIs))
	case len(t.ExtraExtensions) > 1 || len(t.ExtraExtensions) == 1 && !t.ExtraExtensions[0].Id.Equal(tokentime.OID):
		return errors.New("the template has extensions other than the time of the last token")
	case t.NotBefore.Before(s.issuer.NotBefore) || t.NotAfter.After(s.issuer.NotAfter):
		return errors.New("the template is valid outside the issuer's validity")
	case !t.NotAfter.After(t.NotBefore):
		return errors.New("the template is never valid")
	}
	return nil
}

// serial is 128 random bits with the top bit clear (RFC 5280, 4.1.2.2: positive, at most 20 octets) and never zero.
func (s *Signer) serial() (*big.Int, error) {
	var b [16]byte
	if _, err := io.ReadFull(s.random, b[:]); err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:]), nil
}

// encodePEM encodes a certificate as PEM.
func encodePEM(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
