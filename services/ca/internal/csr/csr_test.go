package csr

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/rejection"
)

type basicConstraints struct {
	IsCA       bool `asn1:"optional"`
	MaxPathLen int  `asn1:"optional,default:-1"`
}

func rsaKey(t testing.TB, bits int) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func ecKey(t testing.TB, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// tampered changes the last byte of the signature.
func tampered(t testing.TB) string {
	t.Helper()
	block, _ := pem.Decode([]byte(catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})))
	block.Bytes[len(block.Bytes)-1] ^= 1
	return catest.PEM(block.Bytes)
}

// otherKey has the public key of one pair and the signature of another.
func otherKey(t testing.TB) string {
	t.Helper()
	var a, b struct {
		Body      asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}
	one, _ := pem.Decode([]byte(catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})))
	two, _ := pem.Decode([]byte(catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})))
	if _, err := asn1.Unmarshal(one.Bytes, &a); err != nil {
		t.Fatal(err)
	}
	if _, err := asn1.Unmarshal(two.Bytes, &b); err != nil {
		t.Fatal(err)
	}
	a.Signature = b.Signature
	der, err := asn1.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return catest.PEM(der)
}

// unsignedRSA is a request with this RSA public key, whose modulus is no product of two primes and whose signature
// nobody has made: the key is rejected before anything is computed with it.
func unsignedRSA(t testing.TB, bits, exponent int) []byte {
	t.Helper()
	modulus := new(big.Int).SetBit(big.NewInt(1), bits-1, 1)
	key, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: modulus, E: exponent})
	if err != nil {
		t.Fatal(err)
	}
	type body struct {
		Version             int
		Subject, Key        asn1.RawValue
		EmptyAttributesOnly asn1.RawValue
	}
	der, err := asn1.Marshal(struct {
		Body      body
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		Body: body{
			Subject: asn1.RawValue{FullBytes: []byte{0x30, 0x00}}, Key: asn1.RawValue{FullBytes: key},
			EmptyAttributesOnly: asn1.RawValue{FullBytes: []byte{0xa0, 0x00}},
		},
		Algorithm: pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue},
		Signature: asn1.BitString{Bytes: make([]byte, bits/8), BitLength: bits},
	})
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestParseAccepts(t *testing.T) {
	small := rsaKey(t, 2048)
	for name, tc := range map[string]struct {
		text string
		want Names
	}{
		"empty":    {text: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})},
		"P-384":    {text: catest.CSR(t, ecKey(t, elliptic.P384()), &x509.CertificateRequest{})},
		"RSA 2048": {text: catest.CSR(t, small, &x509.CertificateRequest{})},
		"subject": {text: catest.CSR(t, catest.Key(t),
			&x509.CertificateRequest{Subject: pkix.Name{CommonName: "root", Organization: []string{"admins"}}})},
		"CA:FALSE":  {text: catest.CSR(t, catest.Key(t), catest.Extension(t, oidBasicConstraints, basicConstraints{MaxPathLen: -1}))},
		"key usage": {text: catest.CSR(t, catest.Key(t), catest.Extension(t, oidKeyUsage, asn1.BitString{Bytes: []byte{0xa0}, BitLength: 3}))},
		"TLS usages": {text: catest.CSR(t, catest.Key(t),
			catest.Extension(t, oidExtKeyUsage, []asn1.ObjectIdentifier{oidServerAuth, oidClientAuth}))},
		"white space": {text: "\n" + catest.CSR(t, catest.Key(t), &x509.CertificateRequest{}) + "\n \n"},
		"names": {
			text: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{
				URIs:     catest.Names(t, "spiffe://cluster.local/ns/a/sa/b", "spiffe://cluster.local/ns/c/sa/d").URIs,
				DNSNames: []string{"b.a.svc"}, EmailAddresses: []string{"a@b.example"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			}),
			want: Names{
				URIs: []string{"spiffe://cluster.local/ns/a/sa/b", "spiffe://cluster.local/ns/c/sa/d"},
				DNS:  []string{"b.a.svc"}, Emails: []string{"a@b.example"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if name == "names" {
				if len(got.Names.IPs) != 1 || got.Names.IPs[0].String() != "127.0.0.1" {
					t.Errorf("IP addresses %v, want 127.0.0.1", got.Names.IPs)
				}
				got.Names.IPs = nil
			}
			if diff := cmp.Diff(tc.want, got.Names); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			if got.PublicKey == nil {
				t.Error("no public key")
			}
		})
	}
}

func TestParseRejects(t *testing.T) {
	good := catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	weak := func() string {
		t.Setenv("GODEBUG", "rsa1024min=0")
		return catest.CSR(t, rsaKey(t, 1024), &x509.CertificateRequest{})
	}()
	generalName := func(tag int, content string) []asn1.RawValue {
		return []asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: tag, Bytes: []byte(content)}}
	}
	for name, tc := range map[string]struct {
		text   string
		reason rejection.Reason
	}{
		"nothing":               {"", rejection.CSRMalformed},
		"no PEM":                {"certificate, please", rejection.CSRMalformed},
		"a key":                 {strings.ReplaceAll(good, "CERTIFICATE REQUEST", "PRIVATE KEY"), rejection.CSRMalformed},
		"PEM headers":           {strings.Replace(good, "REQUEST-----\n", "REQUEST-----\nA: b\n\n", 1), rejection.CSRMalformed},
		"two requests":          {good + good, rejection.CSRMalformed},
		"trailing text":         {good + "x", rejection.CSRMalformed},
		"DER of something else": {catest.PEM([]byte{0x30, 0x00}), rejection.CSRMalformed},
		"too large":             {good + strings.Repeat(" ", MaxPEMBytes), rejection.CSRTooLarge},
		"RSA 1024":              {weak, rejection.CSRKey},
		"RSA 8192":              {catest.PEM(unsignedRSA(t, 8192, 65537)), rejection.CSRKey},
		"RSA exponent 3":        {catest.PEM(unsignedRSA(t, 2048, 3)), rejection.CSRKey},
		"RSA exponent even":     {catest.PEM(unsignedRSA(t, 2048, 65538)), rejection.CSRKey},
		"P-224":                 {catest.CSR(t, ecKey(t, elliptic.P224()), &x509.CertificateRequest{}), rejection.CSRKey},
		"P-521":                 {catest.CSR(t, ecKey(t, elliptic.P521()), &x509.CertificateRequest{}), rejection.CSRKey},
		"Ed25519":               {catest.CSR(t, ed, &x509.CertificateRequest{}), rejection.CSRKey},
		"signature tampered":    {tampered(t), rejection.CSRSignature},
		"another's signature":   {otherKey(t), rejection.CSRSignature},
		"CA:TRUE": {
			catest.CSR(t, catest.Key(t), catest.Extension(t, oidBasicConstraints, basicConstraints{IsCA: true, MaxPathLen: -1})),
			rejection.CSRAuthority,
		},
		"path length": {catest.CSR(t, catest.Key(t), catest.Extension(t, oidBasicConstraints, basicConstraints{MaxPathLen: 0})),
			rejection.CSRAuthority},
		"keyCertSign": {
			catest.CSR(t, catest.Key(t), catest.Extension(t, oidKeyUsage, asn1.BitString{Bytes: []byte{0x04}, BitLength: 6})),
			rejection.CSRAuthority,
		},
		"cRLSign": {catest.CSR(t, catest.Key(t), catest.Extension(t, oidKeyUsage, asn1.BitString{Bytes: []byte{0x02}, BitLength: 7})),
			rejection.CSRAuthority},
		"code signing": {
			catest.CSR(t, catest.Key(t), catest.Extension(t, oidExtKeyUsage, []asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 3}})),
			rejection.CSRExtension,
		},
		"name constraints": {catest.CSR(t, catest.Key(t), catest.Extension(t, asn1.ObjectIdentifier{2, 5, 29, 30}, []int{})),
			rejection.CSRExtension},
		"unknown extension": {
			catest.CSR(t, catest.Key(t), catest.Extension(t, asn1.ObjectIdentifier{1, 2, 3, 4}, "x")), rejection.CSRExtension,
		},
		"other name": {catest.CSR(t, catest.Key(t), catest.Extension(t, oidSubjectAltName, generalName(0, "\x06\x01\x2a"))),
			rejection.CSRNames},
		"directory name": {catest.CSR(t, catest.Key(t), catest.Extension(t, oidSubjectAltName, generalName(4, "\x30\x00"))), rejection.CSRNames},
		"address of three bytes": {
			catest.CSR(t, catest.Key(t), catest.Extension(t, oidSubjectAltName, generalName(7, "\x01\x02\x03"))), rejection.CSRMalformed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tc.text)
			if err == nil {
				t.Fatalf("accepted: %+v", got)
			}
			rejected, ok := rejection.From(err)
			if !ok || rejected.Kind != rejection.Invalid || rejected.Reason != tc.reason {
				t.Errorf("rejected with %v, want reason %s", err, tc.reason)
			}
		})
	}
}

// Each extension may occur once. crypto/x509 refuses duplicates by itself in present versions of Go; the check here
// must not depend on that.
func TestCheckExtensionsRejectsDuplicates(t *testing.T) {
	san := catest.Extension(t, oidSubjectAltName,
		[]asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte("spiffe://a/b")}}).ExtraExtensions[0]
	_, err := checkExtensions([]pkix.Extension{san, san})
	if rejected, ok := rejection.From(err); !ok || rejected.Reason != rejection.CSRExtension {
		t.Errorf("got %v, want a rejection for the second extension", err)
	}
}

// crypto/x509 verifies SHA-1 in requests, though no longer in certificates, so the list of algorithms is the ca's own.
func TestSHA1SignaturesAreRejected(t *testing.T) {
	rsa2048, p256, p384 := rsaKey(t, 2048), catest.Key(t), ecKey(t, elliptic.P384())
	for _, tc := range []struct {
		algorithm x509.SignatureAlgorithm
		key       crypto.Signer
		accepted  bool
	}{
		{x509.ECDSAWithSHA1, p256, false},
		{x509.ECDSAWithSHA1, p384, false},
		{x509.SHA1WithRSA, rsa2048, false},
		{x509.ECDSAWithSHA256, p256, true},
		{x509.ECDSAWithSHA384, p256, true},
		{x509.ECDSAWithSHA512, p384, true},
		{x509.SHA256WithRSA, rsa2048, true},
		{x509.SHA384WithRSA, rsa2048, true},
		{x509.SHA512WithRSA, rsa2048, true},
		{x509.SHA256WithRSAPSS, rsa2048, true},
		{x509.SHA384WithRSAPSS, rsa2048, true},
		{x509.SHA512WithRSAPSS, rsa2048, true},
	} {
		t.Run(fmt.Sprintf("%s with %T", tc.algorithm, tc.key), func(t *testing.T) {
			_, err := Parse(catest.CSR(t, tc.key, &x509.CertificateRequest{SignatureAlgorithm: tc.algorithm}))
			if tc.accepted {
				if err != nil {
					t.Error(err)
				}
				return
			}
			rejected, ok := rejection.From(err)
			if !ok || rejected.Reason != rejection.CSRSignature || !strings.Contains(rejected.Detail, "SHA-256") {
				t.Errorf("got %v, want a rejection that names SHA-256", err)
			}
		})
	}
}

// FuzzParse checks that Parse does not panic, and that what it accepts has the properties that Request documents.
func FuzzParse(f *testing.F) {
	f.Add(catest.CSR(f, catest.Key(f), catest.Names(f, "spiffe://cluster.local/ns/a/sa/b")))
	f.Add(catest.CSR(f, catest.Key(f), catest.Extension(f, oidBasicConstraints, basicConstraints{IsCA: true, MaxPathLen: -1})))
	f.Add(catest.CSR(f, rsaKey(f, 2048), &x509.CertificateRequest{DNSNames: []string{"a"}}))
	f.Add(tampered(f))
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse(text)
		if err != nil {
			if rejected, ok := rejection.From(err); !ok || rejected.Kind != rejection.Invalid {
				t.Fatalf("error is not a rejection: %v", err)
			}
			return
		}
		block, _ := pem.Decode([]byte(text))
		raw, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Fatalf("accepted what does not parse: %v", err)
		}
		if err := raw.CheckSignature(); err != nil {
			t.Fatalf("accepted a signature that does not verify: %v", err)
		}
		if !slices.Contains(signatureAlgorithms, raw.SignatureAlgorithm) {
			t.Fatalf("accepted a signature by %s", raw.SignatureAlgorithm)
		}
		if checkKey(got.PublicKey) != nil {
			t.Fatal("accepted a key that is rejected")
		}
	})
}
