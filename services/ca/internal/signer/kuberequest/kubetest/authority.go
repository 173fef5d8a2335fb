package kubetest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
)

// Authority is a root or an intermediate of a signer.
type Authority struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
	// PEM is Cert.
	PEM []byte
}

// NewAuthority makes a root, or with a parent an intermediate, valid for a day.
func NewAuthority(t testing.TB, name string, parent *Authority) *Authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	a := &Authority{Key: key, Cert: template}
	if parent == nil {
		parent = a
	}
	cert, err := parent.Sign(template, key.Public())
	testkit.NoError(t, err)
	return &Authority{Cert: cert, Key: key, PEM: testkit.CertPEM(cert)}
}

// Sign signs a template.
func (a *Authority) Sign(template *x509.Certificate, public crypto.PublicKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 150))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial.SetBit(serial, 140, 1)
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, public, a.Key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// SignCSR signs what a CSR in PEM asks for, as a signer does that copies names. change may change the template and the
// key.
func (a *Authority) SignCSR(text []byte, ttl time.Duration, change func(*x509.Certificate)) ([]byte, error) {
	block, _ := pem.Decode(text)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: csr.Subject, URIs: csr.URIs, DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses, PublicKey: csr.PublicKey,
		NotBefore: time.Now().Add(-5 * time.Minute), NotAfter: time.Now().Add(ttl), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if _, ok := csr.PublicKey.(*rsa.PublicKey); ok {
		template.KeyUsage |= x509.KeyUsageKeyEncipherment
	}
	if change != nil {
		change(template)
	}
	cert, err := a.Sign(template, template.PublicKey)
	if err != nil {
		return nil, err
	}
	return testkit.CertPEM(cert), nil
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(t, err)
	return key
}

// Request is what the ca asks a signer for, with a CSR of the same names and key. change may change both.
func Request(t testing.TB, namespace, account string, change Change) *signer.Request {
	t.Helper()
	td := spiffeid.RequireTrustDomainFromString(testkit.TrustDomain)
	return RequestWith(t, newKey(t), spiffeid.RequireFromSegments(td, "ns", namespace, "sa", account), change)
}

// Change changes what a signer is asked for.
type Change func(*x509.Certificate, *x509.CertificateRequest)

// RequestWith is Request for a key.
func RequestWith(t testing.TB, key crypto.Signer, id spiffeid.ID, change Change) *signer.Request {
	t.Helper()
	now := time.Now().UTC().Truncate(time.Second)
	template := &x509.Certificate{
		PublicKey: key.Public(), URIs: []*url.URL{id.URL()}, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if _, ok := key.(*rsa.PrivateKey); ok {
		template.KeyUsage |= x509.KeyUsageKeyEncipherment
	}
	csr := &x509.CertificateRequest{URIs: template.URIs}
	if change != nil {
		change(template, csr)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, csr, key)
	testkit.NoError(t, err)
	return &signer.Request{Template: template, CSR: der, Identity: id}
}
