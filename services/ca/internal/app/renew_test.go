package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/tokentime"
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
	self := &x509.Certificate{SerialNumber: h.ownCertificate().SerialNumber, URIs: h.ownCertificate().URIs,
		NotAfter: time.Now().Add(time.Hour)}
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

// Renewals by certificate end some time after the last token, however many there were; a token, sent along with the
// certificate as Istio's agent does or alone, starts anew. What a certificate is for besides renewal goes on meanwhile.
func TestRenewalsEndWithoutToken(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	clock := testkit.NewClock(time.Now())
	o := defaults(t, issuer)
	// Backdated by all that the clock is advanced, because TLS goes by the machine's clock.
	o.MaxRenewalAge, o.ClockSkew = 30*time.Minute, time.Hour
	h := startAt(t, issuer, o, clock)
	token := h.token("default", "reviews")
	current := h.mustCreate(as(t.Context(), token), h.dial(nil), 0)
	lastToken := tokentime.Of(current.leaf)
	for range 3 {
		clock.Advance(9 * time.Minute)
		current = h.mustCreate(t.Context(), h.dial(current.tls()), 0)
		if got := tokentime.Of(current.leaf); !got.Equal(lastToken) {
			t.Fatalf("renewed certificate says that the last token was shown at %s, want %s", got, lastToken)
		}
	}
	clock.Advance(9 * time.Minute)
	conn := h.dial(current.tls())
	request := &security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})}
	for who, ctx := range map[string]context.Context{
		"without a token":       t.Context(),
		"with another's token":  as(t.Context(), h.token("default", "ratings")),
		"with a token too long": as(t.Context(), token+"x"),
	} {
		if _, err := create(ctx, conn, request); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "send a token") {
			t.Errorf("%s: got %v, want PERMISSION_DENIED that asks for a token", who, err)
		}
	}
	if got := h.metric("fairlead_ca_requests_refused_total", "renewal_age"); got != 3 {
		t.Errorf("%v refusals counted for renewals after their end, want 3", got)
	}
	stream, err := cav1.NewTrustServiceClient(conn).WatchBundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, stream, "reviews-1", 0)
	if _, err := stream.Recv(); err != nil {
		t.Errorf("watching the bundle with the same certificate: %v", err)
	}
	again := h.mustCreate(as(t.Context(), token), conn, 0)
	if got := tokentime.Of(again.leaf); got.Before(clock.Now().Add(-time.Minute)) {
		t.Errorf("after a token the certificate says that the last was shown at %s, and it is %s", got, clock.Now())
	}
	clock.Advance(9 * time.Minute)
	h.mustCreate(t.Context(), h.dial(again.tls()), 0)
}
