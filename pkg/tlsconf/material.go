package tlsconf

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// NewMaterial parses PEM texts. certPEM and keyPEM are both empty or both given; roots are required.
func NewMaterial(certPEM, keyPEM, rootsPEM []byte) (*Material, error) {
	roots, err := ParseRoots(rootsPEM)
	if err != nil {
		return nil, err
	}
	m := &Material{Roots: roots, RootsPEM: rootsPEM}
	if len(certPEM) == 0 && len(keyPEM) == 0 {
		return m, nil
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("certificate and key: %w", err)
	}
	m.Certificate, m.CertPEM, m.KeyPEM = &pair, certPEM, keyPEM
	m.NotAfter = pair.Leaf.NotAfter
	return m, nil
}

// ParseRoots reads a PEM bundle of root certificates, as ParseAuthorities does.
func ParseRoots(bundle []byte) (*x509.CertPool, error) {
	certs, err := ParseAuthorities(bundle)
	if err != nil {
		return nil, fmt.Errorf("root certificates: %w", err)
	}
	pool := x509.NewCertPool()
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	return pool, nil
}

// ParseAuthorities reads a PEM bundle of CA certificates, of which there must be one at least. Anything in it that is
// not one is an error: a root that is skipped in silence shows up much later as a failed handshake.
func ParseAuthorities(bundle []byte) ([]*x509.Certificate, error) {
	certs, err := ParseCertificates(bundle)
	if err != nil {
		return nil, err
	}
	for i, cert := range certs {
		if !cert.IsCA {
			return nil, fmt.Errorf("entry %d (%s) is not a certificate authority's", i+1, cert.Subject)
		}
	}
	if len(certs) == 0 {
		return nil, errors.New("no certificate in PEM")
	}
	return certs, nil
}

// EncodeCertificate returns a certificate in PEM, as ParseCertificates reads it.
func EncodeCertificate(c *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
}

// ParseCertificates reads PEM certificates in their order. A block of another type is an error.
func ParseCertificates(text []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return certs, nil
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("entry %d is a %q, not a CERTIFICATE", len(certs)+1, block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
}
