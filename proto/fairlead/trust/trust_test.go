package trust

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const caID = "spiffe://cluster.local/ns/istio-system/sa/ca"

// authority is a root, or an intermediate, of the tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(t testing.TB, template *x509.Certificate, public crypto.PublicKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber, template.NotBefore, template.BasicConstraintsValid = big.NewInt(1), now.Add(-time.Hour), true
	if template.NotAfter.IsZero() {
		template.NotAfter = now.Add(time.Hour)
	}
	parent := a.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func newAuthority(t testing.TB, parent *authority) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	by := parent
	if by == nil {
		by = a
	}
	a.cert = by.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign},
		&a.key.PublicKey)
	return a
}

// ca is the ca's own certificate below a root and an intermediate.
type ca struct {
	root, middle *authority
	own          *tls.Certificate
}

func newCA(t testing.TB, id string, key crypto.Signer) *ca {
	t.Helper()
	c := &ca{root: newAuthority(t, nil)}
	c.middle = newAuthority(t, c.root)
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	leaf := c.middle.sign(t, &x509.Certificate{URIs: []*url.URL{uri}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, key.Public())
	c.own = &tls.Certificate{Certificate: [][]byte{leaf.Raw, c.middle.cert.Raw}, PrivateKey: key, Leaf: leaf}
	return c
}

func (c *ca) bundle(roots ...*authority) *cav1.TrustBundle {
	b := &cav1.TrustBundle{TrustDomain: "cluster.local", Epoch: 1, Generation: 7, RootCertificates: [][]byte{c.root.cert.Raw}}
	for _, r := range roots {
		b.RootCertificates = append(b.RootCertificates, r.cert.Raw)
	}
	return b
}

func (c *ca) receiver() Receiver {
	r := Receiver{Roots: x509.NewCertPool(), CAs: []string{caID}, TrustDomain: "cluster.local", Epoch: 1, Generation: 6, Now: now}
	r.Roots.AddCert(c.root.cert)
	return r
}

func signed(t testing.TB, c *ca, b *cav1.TrustBundle) *cav1.SignedBundle {
	t.Helper()
	s, err := Sign(b, c.own)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestABundleOfTheCAAddsARoot(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"ECDSA": newKey(t), "RSA": rsaKey} {
		t.Run(name, func(t *testing.T) {
			c := newCA(t, caID, key)
			next := newAuthority(t, nil)
			got, err := c.receiver().Verify(signed(t, c, c.bundle(next)))
			if err != nil || len(got.Roots) != 2 || !got.Roots[1].Equal(next.cert) || got.GetGeneration() != 7 {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

// An xds-server that somebody else controls passes on what it likes.
func TestWhoPassesABundleOnCannotChangeIt(t *testing.T) {
	c := newCA(t, caID, newKey(t))
	evil := newCA(t, caID, newKey(t))
	workload := newCA(t, "spiffe://cluster.local/ns/istio-system/sa/xds-server", newKey(t))
	workload.root, workload.middle = c.root, c.middle
	leaf := c.middle.sign(t, &x509.Certificate{URIs: workload.own.Leaf.URIs, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, workload.own.Leaf.PublicKey)
	workload.own.Certificate = [][]byte{leaf.Raw, c.middle.cert.Raw}
	good := signed(t, c, c.bundle())
	for name, tc := range map[string]struct {
		change func(s *cav1.SignedBundle, r *Receiver) *cav1.SignedBundle
		says   string
	}{
		"nothing": {func(*cav1.SignedBundle, *Receiver) *cav1.SignedBundle { return &cav1.SignedBundle{} }, "has 0 certificates"},
		"a root more": {func(s *cav1.SignedBundle, _ *Receiver) *cav1.SignedBundle {
			s.Bundle, _ = proto.Marshal(c.bundle(evil.root))
			return s
		}, "signature is not"},
		"of its own ca": {func(*cav1.SignedBundle, *Receiver) *cav1.SignedBundle { return signed(t, evil, evil.bundle()) }, "nobody whom"},
		"signed with its own certificate": {func(*cav1.SignedBundle, *Receiver) *cav1.SignedBundle {
			return signed(t, workload, c.bundle(evil.root))
		}, "which is not the ca"},
		"the ca's certificate and another signature": {func(s *cav1.SignedBundle, _ *Receiver) *cav1.SignedBundle {
			other := signed(t, evil, c.bundle(evil.root))
			s.Bundle, s.Signature = other.Bundle, other.Signature
			return s
		}, "signature is not"},
		"an older one": {func(s *cav1.SignedBundle, r *Receiver) *cav1.SignedBundle { r.Generation = 8; return s }, "is older than"},
		"one of before a restore": {func(s *cav1.SignedBundle, r *Receiver) *cav1.SignedBundle { r.Epoch, r.Generation = 2, 1; return s },
			"is older than"},
		"one whose signer has expired": {func(s *cav1.SignedBundle, r *Receiver) *cav1.SignedBundle {
			r.Now = now.Add(2 * time.Hour)
			return s
		}, "nobody whom"},
		"one of another mesh": {func(s *cav1.SignedBundle, r *Receiver) *cav1.SignedBundle { r.TrustDomain = "other"; return s },
			`not of "other"`},
		"no certificate": {func(s *cav1.SignedBundle, _ *Receiver) *cav1.SignedBundle {
			s.CertificateChain = [][]byte{{1}}
			return s
		}, "ca's certificate"},
		"a chain without end": {func(s *cav1.SignedBundle, _ *Receiver) *cav1.SignedBundle {
			s.CertificateChain = make([][]byte, 7)
			return s
		}, "has 7 certificates"},
		"a megabyte": {func(s *cav1.SignedBundle, _ *Receiver) *cav1.SignedBundle {
			s.Signature = make([]byte, MaxBytes)
			return s
		}, "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.receiver()
			s := tc.change(proto.CloneOf(good), &r)
			if _, err := r.Verify(s); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want an error with %q", err, tc.says)
			}
		})
	}
}

// A ca that errs does not take away what workloads verify with.
func TestABundleThatVerifiesNobodyIsRefused(t *testing.T) {
	c := newCA(t, caID, newKey(t))
	for name, tc := range map[string]struct {
		roots [][]byte
		says  string
	}{
		"no root":        {nil, "0 roots"},
		"no certificate": {[][]byte{{1, 2}}, "root 0"},
		"a leaf":         {[][]byte{c.own.Certificate[0]}, "no certificate authority"},
		"too many":       {make([][]byte, maxRoots+1), "257 roots"},
	} {
		t.Run(name, func(t *testing.T) {
			b := c.bundle()
			b.RootCertificates = tc.roots
			if _, err := c.receiver().Verify(signed(t, c, b)); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want an error with %q", err, tc.says)
			}
		})
	}
}

func FuzzVerify(f *testing.F) {
	c := newCA(f, caID, newKey(f))
	text, err := proto.Marshal(signed(f, c, c.bundle()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		s := &cav1.SignedBundle{}
		if proto.Unmarshal(text, s) != nil {
			return
		}
		got, err := c.receiver().Verify(s)
		if err == nil && (len(got.Roots) != 1 || !got.Roots[0].Equal(c.root.cert)) {
			t.Errorf("took the roots %v", got.Roots)
		}
	})
}
