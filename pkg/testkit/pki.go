package testkit

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
)

// TrustDomain is the default trust domain of certificates and tokens.
const TrustDomain = "cluster.local"

// CA issues X.509-SVIDs for tests.
type CA struct {
	t           testing.TB
	TrustDomain spiffeid.TrustDomain
	Cert        *x509.Certificate
	Key         *ecdsa.PrivateKey
	// RootPEM is Cert in PEM.
	RootPEM []byte
}

var serials atomic.Int64

// PKI returns a CA with a self-signed root for TrustDomain.
func PKI(t testing.TB) *CA {
	t.Helper()
	return NewCA(t, TrustDomain, time.Now())
}

// NewCA returns a CA with a self-signed root for a trust domain, valid for ten years from the day before now.
func NewCA(t testing.TB, trustDomain string, now time.Time) *CA {
	t.Helper()
	key := newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(serials.Add(1)),
		Subject:               pkix.Name{Organization: []string{"Fairlead test"}, CommonName: "root"},
		NotBefore:             now.Add(-24 * time.Hour),
		NotAfter:              now.AddDate(10, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: trustDomain}},
	}
	cert := sign(t, tmpl, tmpl, key.Public(), key)
	return &CA{
		t: t, TrustDomain: spiffeid.RequireTrustDomainFromString(trustDomain),
		Cert: cert, Key: key, RootPEM: CertPEM(cert),
	}
}

// Option changes a certificate's template.
type Option func(*x509.Certificate)

// Valid sets the validity.
func Valid(notBefore, notAfter time.Time) Option {
	return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = notBefore, notAfter }
}

// ID returns the SPIFFE id of a service account in the CA's trust domain.
func (ca *CA) ID(namespace, serviceAccount string) spiffeid.ID {
	return spiffeid.RequireFromSegments(ca.TrustDomain, "ns", namespace, "sa", serviceAccount)
}

// NewSVID issues a certificate for a service account, valid for an hour, with the CA as the only root.
func (ca *CA) NewSVID(namespace, serviceAccount string, opts ...Option) *Static {
	ca.t.Helper()
	key := newKey(ca.t)
	chain := ca.Sign(ca.ID(namespace, serviceAccount), key.Public(), opts...)
	m, err := tlsconf.NewMaterial(chain, KeyPEM(ca.t, key), ca.RootPEM)
	if err != nil {
		ca.t.Fatal(err)
	}
	return NewStatic(m)
}

// RootsOnly returns a source without a certificate.
func (ca *CA) RootsOnly() *Static {
	ca.t.Helper()
	m, err := tlsconf.NewMaterial(nil, nil, ca.RootPEM)
	if err != nil {
		ca.t.Fatal(err)
	}
	return NewStatic(m)
}

// Sign issues a leaf for a public key, in PEM.
func (ca *CA) Sign(id spiffeid.ID, public crypto.PublicKey, opts ...Option) []byte {
	ca.t.Helper()
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(serials.Add(1)),
		NotBefore:             now.Add(-time.Minute),
		NotAfter:              now.Add(time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{id.URL()},
	}
	for _, o := range opts {
		o(tmpl)
	}
	return CertPEM(sign(ca.t, tmpl, ca.Cert, public, ca.Key))
}

// On adds an IP address to those that the certificate serves.
func On(ip netip.Addr) Option {
	return func(c *x509.Certificate) { c.IPAddresses = append(c.IPAddresses, ip.AsSlice()) }
}

// WriteSVID writes a key and the certificate of a service account, which is valid for a year, into one file, as a
// service keeps its own: a service that has one does not ask a ca. It makes the file's directory.
func (ca *CA) WriteSVID(path, namespace, serviceAccount string, opts ...Option) {
	ca.t.Helper()
	key, now := newKey(ca.t), time.Now()
	opts = append([]Option{Valid(now.Add(-time.Minute), now.AddDate(1, 0, 0))}, opts...)
	NoError(ca.t, os.MkdirAll(filepath.Dir(path), 0o700))
	WriteFile(ca.t, path, slices.Concat(KeyPEM(ca.t, key), ca.Sign(ca.ID(namespace, serviceAccount), key.Public(), opts...)))
}

// WriteRoot writes root-cert.pem into dir and returns its path.
func (ca *CA) WriteRoot(dir string) string {
	ca.t.Helper()
	path := filepath.Join(dir, "root-cert.pem")
	WriteFile(ca.t, path, ca.RootPEM)
	return path
}

// WriteFile replaces a file atomically, with mode 0600.
func WriteFile(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := fileio.Write(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Static is a tlsconf.Source that only Set changes.
type Static struct {
	notify.Notifier
	current atomic.Pointer[tlsconf.Material]
}

var _ tlsconf.Source = (*Static)(nil)

// NewStatic returns a source of m.
func NewStatic(m *tlsconf.Material) *Static {
	s := &Static{}
	s.current.Store(m)
	return s
}

// Current returns the material.
func (s *Static) Current() (*tlsconf.Material, error) { return s.current.Load(), nil }

// Set replaces the material and notifies Changed.
func (s *Static) Set(m *tlsconf.Material) {
	s.current.Store(m)
	s.Notify()
}

// CertPEM encodes a certificate.
func CertPEM(cert *x509.Certificate) []byte {
	return []byte(tlsconf.EncodeCertificate(cert))
}

// KeyPEM encodes a private key as PKCS #8.
func KeyPEM(t testing.TB, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, tmpl, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, public, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
