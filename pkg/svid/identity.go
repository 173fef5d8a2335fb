package svid

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"fairlead.dev/pkg/tlsconf"
)

const (
	typeCertificate = "CERTIFICATE"
	typeCSR         = "CERTIFICATE REQUEST"
)

// identity is a private key with its certificate chain, leaf first, without roots. It is immutable.
type identity struct {
	key   crypto.Signer
	leaf  *x509.Certificate
	chain []*x509.Certificate
	// foreignRoots are the self-signed certificates in the ca's answer; they are not sent to peers.
	foreignRoots []*x509.Certificate

	certPEM, keyPEM []byte
}

// newCSR returns a CSR with the identity as its SAN. The ca takes the identity from the caller's credentials; one that
// compares the SANs finds them equal.
func newCSR(key crypto.Signer, id spiffeid.ID) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{id.URL()}}, key)
	if err != nil {
		return nil, fmt.Errorf("create certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeCSR, Bytes: der}), nil
}

func newIdentity(key crypto.Signer, certs []*x509.Certificate, encoding KeyType) (*identity, error) {
	if len(certs) == 0 {
		return nil, errors.New("no certificate in the chain")
	}
	id := &identity{key: key, leaf: certs[0]}
	if public, ok := id.leaf.PublicKey.(interface {
		Equal(other crypto.PublicKey) bool
	}); !ok || !public.Equal(key.Public()) {
		return nil, errors.New("certificate is for another key")
	}
	for i, c := range certs {
		if i > 0 && c.CheckSignatureFrom(c) == nil {
			id.foreignRoots = append(id.foreignRoots, c)
			continue
		}
		id.chain = append(id.chain, c)
		id.certPEM = append(id.certPEM, pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: c.Raw})...)
	}
	var err error
	id.keyPEM, err = encoding.encode(key)
	return id, err
}

// verify checks that peers with these roots accept the identity as want at the time now.
func (id *identity) verify(roots *x509.CertPool, want spiffeid.ID, now time.Time) error {
	got, err := x509svid.IDFromCert(id.leaf)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	if got != want {
		return fmt.Errorf("certificate is for %s, expected %s", got, want)
	}
	if id.leaf.IsCA {
		return errors.New("certificate is an authority's, not a workload's")
	}
	intermediates := x509.NewCertPool()
	for _, c := range id.chain[1:] {
		intermediates.AddCert(c)
	}
	// It is used at both ends of connections.
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		if _, err := id.leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
		}); err != nil {
			return fmt.Errorf("certificate does not verify with the roots that are trusted here: %w", err)
		}
	}
	return nil
}

func (id *identity) material(roots *tlsconf.Material) *tlsconf.Material {
	cert := &tls.Certificate{PrivateKey: id.key, Leaf: id.leaf}
	for _, c := range id.chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return &tlsconf.Material{
		Certificate: cert, Roots: roots.Roots, RootsPEM: roots.RootsPEM,
		CertPEM: id.certPEM, KeyPEM: id.keyPEM, NotAfter: id.leaf.NotAfter,
	}
}
