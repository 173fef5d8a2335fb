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

// ParseRoots parses a PEM bundle of CA certificates. Anything else in it is an error: a root that was skipped silently
// would show later as failed handshakes.
func ParseRoots(bundle []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	n := 0
	for rest := bundle; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		n++
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("root certificates: entry %d is a %s, not a CERTIFICATE", n, block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("root certificates: entry %d: %w", n, err)
		}
		if !cert.IsCA {
			return nil, fmt.Errorf("root certificates: entry %d (%s) is not a CA certificate", n, cert.Subject)
		}
		pool.AddCert(cert)
	}
	if n == 0 {
		return nil, errors.New("root certificates: no PEM certificate found")
	}
	return pool, nil
}
