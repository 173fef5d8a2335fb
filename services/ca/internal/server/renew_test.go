package server

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
)

func TestRenewalByCertificate(t *testing.T) {
	h := start(t, nil)
	first := h.mustCreate(as(t.Context(), h.token("default", "reviews")), h.dial(nil), 0)
	conn := h.dial(first.tls())
	renewed := h.mustCreate(t.Context(), conn, 0)
	if uriOf(renewed.leaf) != reviewsID || renewed.leaf.SerialNumber.Cmp(first.leaf.SerialNumber) == 0 {
		t.Errorf("renewed %s serial %x, want a new certificate for %s", uriOf(renewed.leaf), renewed.leaf.SerialNumber, reviewsID)
	}
	if got := h.metric("fairlead_ca_certificates_issued_total", "mtls"); got != 1 {
		t.Errorf("%v certificates counted as renewed, want 1", got)
	}
	_, err := create(t.Context(), conn, &security.IstioCertificateRequest{
		Csr: catest.CSR(t, catest.Key(t), catest.Names(t, "spiffe://cluster.local/ns/default/sa/ratings")),
	})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("asked for another's identity with a certificate: got %v, want PERMISSION_DENIED", err)
	}
}

// The certificate of the connection decides, whatever token comes with a call.
func TestCertificateGoesBeforeToken(t *testing.T) {
	h := start(t, nil)
	first := h.mustCreate(as(t.Context(), h.token("default", "reviews")), h.dial(nil), 0)
	got := h.mustCreate(as(t.Context(), h.token("default", "ratings")), h.dial(first.tls()), 0)
	if uriOf(got.leaf) != reviewsID {
		t.Errorf("got a certificate for %s, want %s", uriOf(got.leaf), reviewsID)
	}
}

func TestForeignCertificatesAreRefused(t *testing.T) {
	h := start(t, nil)
	foreign, err := testkit.PKI(t).NewSVID("default", "reviews").Current()
	if err != nil {
		t.Fatal(err)
	}
	key := catest.Key(t)
	self := &x509.Certificate{SerialNumber: h.ownCertificate().SerialNumber, URIs: h.ownCertificate().URIs, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(randReader, self, self, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	for name, cert := range map[string]*tls.Certificate{
		"of another ca":   foreign.Certificate,
		"self-signed":     {Certificate: [][]byte{der}, PrivateKey: key},
		"without its key": {Certificate: h.ownTLS().Certificate, PrivateKey: key},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := create(t.Context(), h.dial(cert), &security.IstioCertificateRequest{Csr: catest.CSR(t, key, &x509.CertificateRequest{})})
			if code := status.Code(err); code != codes.Unavailable && code != codes.Unauthenticated {
				t.Errorf("got %v, want a refused handshake", err)
			}
		})
	}
}

// A certificate that expires while its connection lives must not renew itself, and neither must it on a new connection.
func TestExpiredCertificateIsRefused(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	short := h.mustCreate(as(t.Context(), h.token("default", "reviews")), h.dial(nil), 2*time.Second)
	conn := h.dial(short.tls())
	h.mustCreate(t.Context(), conn, 0)
	req := &security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})}
	testkit.Eventually(t, testkit.Patience, func() error {
		_, err := create(t.Context(), conn, req)
		return wantCode(err, codes.Unauthenticated)
	})
	if left := time.Until(short.leaf.NotAfter); left > 0 {
		t.Fatalf("refused although the certificate is valid for another %s", left)
	}
	if _, err := create(t.Context(), h.dial(short.tls()), req); status.Code(err) != codes.Unavailable {
		t.Errorf("new connection: got %v, want a refused handshake", err)
	}
	// With a token the same connection is good again: an agent need not notice which of the two it used.
	h.mustCreate(as(t.Context(), h.token("default", "reviews")), conn, 0)
}
