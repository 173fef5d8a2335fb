// Package signertest has what tests of signers share that ask another service: an upstream authority, a request for a
// leaf, and the lies that a service may tell, each of which signer.Check must find.
package signertest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/tokentime"
)

// Token is the token of Request, which may be in no error and no log.
const Token = "header.the-secret-token.signature"

// CA is an upstream authority: a root, and an intermediate that signs leaves.
type CA struct {
	Root, Intermediate *x509.Certificate
	Key                *ecdsa.PrivateKey
}

// NewCA makes a CA that is valid for a day around now.
func NewCA(t testing.TB, name string) *CA {
	t.Helper()
	key := catest.Key(t)
	day := catest.Valid(time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour))
	named := func(name string) catest.Change {
		return func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: name} }
	}
	root := catest.NewCA(t, nil, catest.Key(t), day, named(name+" root"))
	return &CA{Root: root.Cert, Intermediate: catest.NewCA(t, root, key, day, named(name+" intermediate")).Cert, Key: key}
}

// Sign signs a leaf with the intermediate. A template without a serial number gets a random one.
func (c *CA) Sign(t testing.TB, template *x509.Certificate) []*x509.Certificate {
	t.Helper()
	return []*x509.Certificate{sign(t, template, c.Intermediate, c.Key), c.Intermediate}
}

func sign(t testing.TB, template, parent *x509.Certificate, key crypto.Signer) *x509.Certificate {
	t.Helper()
	numbered := *template
	if numbered.SerialNumber == nil {
		serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
		if err != nil {
			t.Fatal(err)
		}
		numbered.SerialNumber = serial.SetBit(serial, 120, 1)
	}
	der, err := x509.CreateCertificate(rand.Reader, &numbered, parent, template.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// PEM encodes each certificate.
func PEM(certs ...*x509.Certificate) []string {
	var texts []string
	for _, c := range certs {
		texts = append(texts, tlsconf.EncodeCertificate(c))
	}
	return texts
}

// Request returns a request for the leaf of a workload, with a CSR, a token and the time of that token, and the
// workload's key.
func Request(t testing.TB) (*signer.Request, *ecdsa.PrivateKey) {
	t.Helper()
	key, now := catest.Key(t), time.Now()
	id := spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/web")
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{id.URL()}}, key)
	if err != nil {
		t.Fatal(err)
	}
	extension, err := tokentime.Extension(now, "")
	if err != nil {
		t.Fatal(err)
	}
	return &signer.Request{
		CSR: csr, Identity: id, Token: Token,
		Template: &x509.Certificate{
			PublicKey: &key.PublicKey, URIs: []*url.URL{id.URL()}, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
			KeyUsage:              x509.KeyUsageDigitalSignature,
			ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			BasicConstraintsValid: true, ExtraExtensions: []pkix.Extension{extension},
		},
	}, key
}

// Lie is an answer with another certificate than the one asked for.
type Lie struct {
	Name string
	// Change changes the template of the certificate; nil changes nothing.
	Change func(t testing.TB, c *x509.Certificate)
	// Foreign is true if another authority than the announced one signs.
	Foreign bool
	// Says is what the error must have.
	Says string
}

// Lies lists the lies.
func Lies() []Lie {
	return []Lie{
		{Name: "another key", Says: "another key", Change: func(t testing.TB, c *x509.Certificate) { c.PublicKey = &catest.Key(t).PublicKey }},
		{Name: "another identity", Says: "has the URIs", Change: func(_ testing.TB, c *x509.Certificate) { c.URIs = []*url.URL{foreign()} }},
		{Name: "a second identity", Says: "has the URIs", Change: func(_ testing.TB, c *x509.Certificate) {
			c.URIs = append(c.URIs[:1:1], foreign())
		}},
		{Name: "a DNS name", Says: "DNS names", Change: func(_ testing.TB, c *x509.Certificate) {
			c.DNSNames = []string{"istiod.istio-system.svc"}
		}},
		{Name: "a longer life", Says: "longer than", Change: func(_ testing.TB, c *x509.Certificate) { c.NotAfter = c.NotAfter.Add(time.Hour) }},
		{Name: "an authority", Says: "authority", Change: func(_ testing.TB, c *x509.Certificate) { c.IsCA = true }},
		{Name: "any usage", Says: "not asked for", Change: func(_ testing.TB, c *x509.Certificate) {
			c.ExtKeyUsage = slices.Concat(c.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageAny})
		}},
		{Name: "another time of the last token", Says: "another value", Change: func(t testing.TB, c *x509.Certificate) {
			later, err := tokentime.Extension(time.Now().Add(time.Hour), "")
			if err != nil {
				t.Fatal(err)
			}
			c.ExtraExtensions = []pkix.Extension{later}
		}},
		{Name: "a serial number that is counted", Says: "random bits", Change: func(_ testing.TB, c *x509.Certificate) {
			c.SerialNumber = big.NewInt(17)
		}},
		{Name: "a certificate that has expired", Says: "the signer's certificate", Change: func(_ testing.TB, c *x509.Certificate) {
			c.NotAfter = time.Now().Add(-time.Second)
		}},
		{Name: "another authority", Says: "does not verify", Foreign: true},
	}
}

func foreign() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/kube-system/sa/admin"}
}

// Upstream answers requests with certificates, and lies when it is told to. It is safe for concurrent use.
type Upstream struct {
	*CA
	t     testing.TB
	other *CA
	lie   atomic.Pointer[Lie]
}

// NewUpstream makes an Upstream that is honest.
func NewUpstream(t testing.TB) *Upstream {
	return &Upstream{CA: NewCA(t, "upstream"), t: t, other: NewCA(t, "other")}
}

// Lie makes it tell a lie from now on, or be honest if that is nil.
func (u *Upstream) Lie(lie *Lie) { u.lie.Store(lie) }

// Answer signs a template, which it does not change.
func (u *Upstream) Answer(template *x509.Certificate) []*x509.Certificate {
	copied, by := *template, u.CA
	if lie := u.lie.Load(); lie != nil {
		if lie.Change != nil {
			lie.Change(u.t, &copied)
		}
		if lie.Foreign {
			by = u.other
		}
	}
	return by.Sign(u.t, &copied)
}

// Issue lets the issuer sign the request, and checks the chain as the ca does.
func Issue(t testing.TB, i signer.Issuer, r *signer.Request) ([]*x509.Certificate, error) {
	t.Helper()
	chain, err := i.Issue(t.Context(), r)
	if err != nil {
		return nil, err
	}
	trusted, _ := i.Authorities()
	if trusted == nil {
		t.Fatal("a certificate was issued, and nothing is known that verifies it")
	}
	pool := x509.NewCertPool()
	for _, c := range trusted.Roots {
		pool.AddCert(c)
	}
	// Not `return err`: that would be an error without a value.
	if err := signer.Check(r, i.Capabilities(), chain, pool, time.Now()); err != nil {
		return nil, err
	}
	return chain, nil
}
