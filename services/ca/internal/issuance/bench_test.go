package issuance

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"testing"
	"time"

	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/authority/authoritytest"
	"fairlead.dev/services/ca/internal/catest"
)

// BenchmarkFloor is what issuing costs at least: a request is parsed and its signature verified, and a certificate is
// signed, which crypto/x509 verifies.
func BenchmarkFloor(b *testing.B) {
	ca := testkit.NewCA(b, "cluster.local", time.Now())
	key := catest.Key(b)
	text := catest.CSR(b, key, &x509.CertificateRequest{})
	uri, err := url.Parse("spiffe://cluster.local/ns/default/sa/reviews")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		block, _ := pem.Decode([]byte(text))
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			b.Fatal(err)
		}
		if err := request.CheckSignature(); err != nil {
			b.Fatal(err)
		}
		serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: serial, URIs: []*url.URL{uri}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}, ca.Cert, request.PublicKey.(*ecdsa.PublicKey), ca.Key); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreateCertificate is a whole request without gRPC and authentication.
func BenchmarkCreateCertificate(b *testing.B) {
	ca := testkit.NewCA(b, "cluster.local", time.Now())
	s := newService(b, ca, testkit.NewClock(time.Now()), authoritytest.New(b, ca.Cert, ca.Key), &bytes.Buffer{})
	ctx := auth.NewContext(b.Context(), auth.Peer{ID: ca.ID("default", "reviews"), Method: auth.MethodJWT})
	request := &security.IstioCertificateRequest{Csr: catest.CSR(b, catest.Key(b), &x509.CertificateRequest{})}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.CreateCertificate(ctx, request); err != nil {
			b.Fatal(err)
		}
	}
}
