package catest

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
	"slices"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

// CA is a certificate authority, a root or an intermediate.
type CA struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// Change changes the template of a certificate.
type Change func(*x509.Certificate)

// Valid sets the validity.
func Valid(notBefore, notAfter time.Time) Change {
	return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = notBefore, notAfter }
}

// NewCA makes an authority below the parent, or a root if that is nil. It is valid for a year and may sign certificates
// and lists; its subject is different every time.
func NewCA(t testing.TB, parent *CA, key crypto.Signer, changes ...Change) *CA {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	testkit.NoError(t, err)
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "ca " + serial.String()}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	for _, change := range changes {
		change(template)
	}
	above := &CA{template, key}
	if parent != nil {
		above = parent
	}
	return &CA{above.Sign(t, template, key.Public()), key}
}

// Sign signs the template.
func (c *CA) Sign(t testing.TB, template *x509.Certificate, public crypto.PublicKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, c.Cert, public, c.Key)
	testkit.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	testkit.NoError(t, err)
	return cert
}

// CRL makes a list of revoked certificates in PEM, with these serial numbers.
func (c *CA) CRL(t testing.TB, thisUpdate, nextUpdate time.Time, revoked ...*big.Int) []byte {
	t.Helper()
	template := &x509.RevocationList{Number: big.NewInt(thisUpdate.Unix()), ThisUpdate: thisUpdate, NextUpdate: nextUpdate}
	for _, serial := range revoked {
		template.RevokedCertificateEntries = append(template.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: serial, RevocationTime: thisUpdate})
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, c.Cert, c.Key)
	testkit.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// Certs encodes certificates in PEM, one after the other.
func Certs(authorities ...*CA) []byte {
	var out [][]byte
	for _, c := range authorities {
		out = append(out, testkit.CertPEM(c.Cert))
	}
	return slices.Concat(out...)
}

// KeyPEM encodes a key as PKCS#8.
func KeyPEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	testkit.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// CurveKey makes an ECDSA key.
func CurveKey(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	testkit.NoError(t, err)
	return key
}

// RSAKey makes an RSA key.
func RSAKey(t testing.TB, bits int) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	testkit.NoError(t, err)
	return key
}

// Pool is a pool of certificates.
func Pool(certs ...*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool
}
