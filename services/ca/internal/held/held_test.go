package held

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"math/big"
	"net/url"
	"testing"
	"time"

	"crypto/x509/pkix"

	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/tokentime"
)

func newSigner(t *testing.T, now time.Time) *Signer {
	t.Helper()
	key := catest.Key(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return New(cert, key)
}

func template(t testing.TB, now time.Time) *x509.Certificate {
	t.Helper()
	lastToken, err := tokentime.Extension(now, "")
	if err != nil {
		t.Fatal(err)
	}
	return &x509.Certificate{
		ExtraExtensions: []pkix.Extension{lastToken},
		PublicKey:       catest.Key(t).Public(), URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/a/sa/b"}},
		NotBefore: now, NotAfter: now.Add(time.Minute), KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}
}

func TestSign(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := newSigner(t, now)
	want := template(t, now)
	seen := map[string]bool{}
	for range 100 {
		chain, err := s.Issue(t.Context(), &signer.Request{Template: want})
		if err != nil {
			t.Fatal(err)
		}
		serial := hex.EncodeToString(chain[0].SerialNumber.Bytes())
		if seen[serial] || len(serial) != 32 {
			t.Fatalf("serial number %s: wanted 128 bits, never twice", serial)
		}
		seen[serial] = true
		if err := chain[0].CheckSignatureFrom(s.Issuer()); err != nil {
			t.Fatal(err)
		}
		if len(chain) != 1 {
			t.Fatal("the chain below a root is not the leaf alone")
		}
	}
	if want.SerialNumber != nil {
		t.Error("the caller's template was changed")
	}
}

func TestSignRejects(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := newSigner(t, now)
	for name, change := range map[string]func(*x509.Certificate){
		"no key":              func(c *x509.Certificate) { c.PublicKey = nil },
		"an authority":        func(c *x509.Certificate) { c.IsCA = true },
		"keyCertSign":         func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign },
		"no identity":         func(c *x509.Certificate) { c.URIs = nil },
		"two identities":      func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) },
		"extensions":          func(c *x509.Certificate) { c.ExtraExtensions = []pkix.Extension{{}} },
		"one extension twice": func(c *x509.Certificate) { c.ExtraExtensions = append(c.ExtraExtensions, c.ExtraExtensions[0]) },
		"outlives the issuer": func(c *x509.Certificate) { c.NotAfter = s.Issuer().NotAfter.Add(time.Second) },
		"before the issuer":   func(c *x509.Certificate) { c.NotBefore = s.Issuer().NotBefore.Add(-time.Second) },
		"never valid":         func(c *x509.Certificate) { c.NotAfter = c.NotBefore },
	} {
		t.Run(name, func(t *testing.T) {
			c := template(t, now)
			change(c)
			if chain, err := s.Issue(t.Context(), &signer.Request{Template: c}); err == nil {
				t.Errorf("signed: %v", chain[0].Subject)
			}
		})
	}
}
