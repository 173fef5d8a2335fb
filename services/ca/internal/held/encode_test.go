package held

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
)

// issuerOf makes an authority with the key.
func issuerOf(t testing.TB, key crypto.Signer, subject pkix.Name, keyID []byte) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: subject, SubjectKeyId: keyID, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := testkit.Must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	return testkit.Must(x509.ParseCertificate(der))(t)
}

// randomTemplate makes a template such as the ca's policy does.
func randomTemplate(t testing.TB, r *mathrand.Rand, key crypto.PublicKey) *x509.Certificate {
	t.Helper()
	out := template(t, time.Unix(r.Int64N(1<<32), 0))
	out.PublicKey, out.NotAfter = key, out.NotBefore.Add(time.Duration(r.Int64N(int64(200*24*365*time.Hour))))
	serial := make([]byte, 1+r.IntN(20))
	for i := range serial {
		serial[i] = byte(r.Uint32())
	}
	out.SerialNumber = new(big.Int).SetBytes(serial)
	out.KeyUsage = x509.KeyUsage(1 + r.IntN(1<<5-1))
	out.ExtKeyUsage = [][]x509.ExtKeyUsage{{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, {x509.ExtKeyUsageClientAuth}}[r.IntN(2)]
	for range r.IntN(4) {
		out.DNSNames = append(out.DNSNames, strings.Repeat("a", r.IntN(200))+".example")
	}
	for range r.IntN(3) {
		ip := make(net.IP, []int{4, 16}[r.IntN(2)])
		ip[0], ip[len(ip)-1] = 10, byte(r.Uint32())
		out.IPAddresses = append(out.IPAddresses, ip, net.IPv4(10, 0, 0, byte(r.Uint32())))
	}
	out.URIs[0] = &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/" + strings.Repeat("n", r.IntN(1000)) + "/sa/b c"}
	if r.IntN(2) == 0 {
		out.ExtraExtensions = append(out.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3, 4 << 20}, Critical: true,
			Value: make([]byte, r.IntN(300))})
	}
	return out
}

// Certificates have the bytes that x509.CreateCertificate gives them, up to the signature, which is right.
func TestCertificatesAreThoseOfX509(t *testing.T) {
	r := mathrand.New(mathrand.NewPCG(1, 2))
	public := []crypto.PublicKey{catest.Key(t).Public(), testkit.Must(rsa.GenerateKey(rand.Reader, 2048))(t).Public(),
		testkit.Must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t).Public()}
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384()} {
		key := testkit.Must(ecdsa.GenerateKey(curve, rand.Reader))(t)
		for _, keyID := range [][]byte{nil, {1, 2, 3}} {
			issuer := issuerOf(t, key, pkix.Name{CommonName: "root", Organization: []string{"mesh"}}, keyID)
			q := newQuick(issuer, key)
			for i := range 250 {
				template := randomTemplate(t, r, public[i%len(public)])
				if !q.knows(template) {
					t.Fatalf("a template of the policy is not known: %+v", template)
				}
				got := testkit.Must(x509.ParseCertificate(testkit.Must(q.create(template, issuer, rand.Reader))(t)))(t)
				want := testkit.Must(x509.CreateCertificate(rand.Reader, template, issuer, template.PublicKey, key))(t)
				if !bytes.Equal(got.RawTBSCertificate, testkit.Must(x509.ParseCertificate(want))(t).RawTBSCertificate) {
					t.Fatalf("template %+v:\n%x\n%x", template, got.Raw, want)
				}
				testkit.NoError(t, got.CheckSignatureFrom(issuer))
			}
		}
	}
}

// What is not written by create is left to crypto/x509, or an error there, too.
func TestOtherCertificatesAreLeftToX509(t *testing.T) {
	key := catest.Key(t)
	issuer := issuerOf(t, key, pkix.Name{CommonName: "root"}, []byte{1})
	q, net24 := newQuick(issuer, key), []*net.IPNet{{IP: net.IPv4(10, 0, 0, 0), Mask: net.CIDRMask(8, 32)}}
	if q == nil {
		t.Fatal("an ECDSA key in this process does not sign")
	}
	for name, change := range map[string]func(*x509.Certificate){
		"subject":         func(c *x509.Certificate) { c.Subject.CommonName = "a" },
		"raw subject":     func(c *x509.Certificate) { c.RawSubject = []byte{0x30, 0} },
		"usages":          func(c *x509.Certificate) { c.ExtKeyUsage = nil },
		"usage":           func(c *x509.Certificate) { c.ExtKeyUsage[0] = x509.ExtKeyUsageCodeSigning },
		"unknown usage":   func(c *x509.Certificate) { c.UnknownExtKeyUsage = []asn1.ObjectIdentifier{{1, 2}} },
		"decipher only":   func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageDecipherOnly },
		"authority":       func(c *x509.Certificate) { c.IsCA = true },
		"path length":     func(c *x509.Certificate) { c.MaxPathLen = 1 },
		"no constraints":  func(c *x509.Certificate) { c.BasicConstraintsValid = false },
		"own key id":      func(c *x509.Certificate) { c.SubjectKeyId = []byte{1} },
		"issuer's key id": func(c *x509.Certificate) { c.AuthorityKeyId = []byte{1} },
		"OCSP":            func(c *x509.Certificate) { c.OCSPServer = []string{"http://a"} },
		"issuer's URL":    func(c *x509.Certificate) { c.IssuingCertificateURL = []string{"http://a"} },
		"CRL":             func(c *x509.Certificate) { c.CRLDistributionPoints = []string{"http://a"} },
		"email":           func(c *x509.Certificate) { c.EmailAddresses = []string{"a@b"} },
		"policy":          func(c *x509.Certificate) { c.Policies = []x509.OID{testkit.Must(x509.OIDFromInts([]uint64{1, 2}))(t)} },
		"DNS constraint":  func(c *x509.Certificate) { c.ExcludedDNSDomains = []string{"a"} },
		"IP constraint":   func(c *x509.Certificate) { c.PermittedIPRanges = net24 },
		"mail constraint": func(c *x509.Certificate) { c.PermittedEmailAddresses = []string{"a"} },
		"URI constraint":  func(c *x509.Certificate) { c.PermittedURIDomains = []string{"a"} },
		"names": func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: oidSubjectAltName, Value: []byte{0x30, 0}}}
		},
	} {
		c := randomTemplate(t, mathrand.New(mathrand.NewPCG(3, 4)), key.Public())
		if change(c); q.knows(c) {
			t.Errorf("%s: known", name)
		}
	}
	other := catest.Key(t)
	for name, of := range map[string]*quick{
		"another key":         newQuick(issuer, other),
		"a key elsewhere":     newQuick(issuer, struct{ crypto.Signer }{key}),
		"RSA":                 newQuick(issuer, testkit.Must(rsa.GenerateKey(rand.Reader, 2048))(t)),
		"issuer with no name": newQuick(issuerOf(t, key, pkix.Name{}, nil), key),
	} {
		if of != nil {
			t.Errorf("%s signs", name)
		}
	}
	c := randomTemplate(t, mathrand.New(mathrand.NewPCG(3, 4)), key.Public())
	c.DNSNames = []string{"ä.example"}
	_, err := q.create(c, issuer, rand.Reader)
	if _, want := x509.CreateCertificate(rand.Reader, c, issuer, c.PublicKey, key); err == nil || want == nil {
		t.Errorf("a name beyond ASCII: %v, %v", err, want)
	}
}
