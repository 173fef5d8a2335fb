package issuance

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/authority/authoritytest"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/holders"
)

// register keeps what it is told.
type register []holders.Certificate

func (r *register) Issued(c holders.Certificate) { *r = append(*r, c) }

// showing is a context of a call whose client has shown a certificate.
func showing(ctx context.Context, cert *x509.Certificate) context.Context {
	return peer.NewContext(ctx, &peer.Peer{
		AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}}})
}

func TestTheRegistryLearnsWhoseCertificateIsReplaced(t *testing.T) {
	ca := testkit.PKI(t)
	leaf := func(account string) *x509.Certificate {
		return testkit.Must(x509.ParseCertificate(testkit.Must(ca.NewSVID("shop", account).Current())(t).Certificate.Certificate[0]))(t)
	}
	of, before := leaf("web"), leaf("web")
	issued := &authority.Issued{Certificate: of, Signer: 3, Epoch: 4, Generation: 5}
	token := &auth.Token{Pod: "web-0", PodUID: "p1"}
	web := ca.ID("shop", "web")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx    context.Context
		caller auth.Peer
		want   func(*holders.Certificate)
	}{
		"a token of a Pod": {t.Context(), auth.Peer{ID: web, Method: auth.MethodJWT, Token: token},
			func(c *holders.Certificate) { c.Pod, c.PodUID = "shop/web-0", "p1" }},
		"a token of no Pod": {t.Context(), auth.Peer{ID: web, Method: auth.MethodJWT, Token: &auth.Token{}}, func(*holders.Certificate) {}},
		"a certificate": {showing(t.Context(), before), auth.Peer{ID: web, Method: auth.MethodMTLS},
			func(c *holders.Certificate) { c.Predecessor = holders.FingerprintOf(before.Raw) }},
		// The connection is that of the xds-server, and only the token counts.
		"a token forwarded": {showing(t.Context(), leaf("xds-server")), auth.Peer{ID: web, Method: auth.MethodJWT, Token: token},
			func(c *holders.Certificate) { c.Pod, c.PodUID = "shop/web-0", "p1" }},
		"an impersonator's certificate": {showing(t.Context(), leaf("ztunnel")), auth.Peer{ID: ca.ID("shop", "ztunnel"), Method: auth.MethodMTLS},
			func(*holders.Certificate) {}},
		"an impersonator's token": {t.Context(), auth.Peer{ID: ca.ID("shop", "ztunnel"), Method: auth.MethodJWT, Token: token},
			func(*holders.Certificate) {}},
		"a caller that is gone": {gone, auth.Peer{ID: web, Method: auth.MethodJWT}, func(c *holders.Certificate) { c.Undelivered = true }},
	} {
		t.Run(name, func(t *testing.T) {
			want := holders.Certificate{
				Fingerprint: holders.FingerprintOf(of.Raw), Serial: issued.Serial(), Identity: web.String(), Signer: 3, Epoch: 4, Generation: 5,
				AuthorityKeyID: of.AuthorityKeyId, NotBefore: of.NotBefore, NotAfter: of.NotAfter,
			}
			tc.want(&want)
			if diff := cmp.Diff(want, held(tc.ctx, tc.caller, issued)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEveryCertificateIsRegisteredAndNoRefusal(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ca := testkit.NewCA(t, "cluster.local", start)
	s := newService(t, ca, testkit.NewClock(start), authoritytest.New(t, ca.Cert, ca.Key), &bytes.Buffer{})
	var told register
	s.cfg.Holders = &told
	ctx := auth.NewContext(t.Context(), auth.Peer{ID: ca.ID("default", "reviews"), Method: auth.MethodJWT})
	if _, err := s.CreateCertificate(ctx, &security.IstioCertificateRequest{Csr: "no CSR"}); err == nil || len(told) != 0 {
		t.Fatalf("a refusal: %v, told %v", err, told)
	}
	request := &security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})}
	if _, err := s.CreateCertificate(ctx, request); err != nil {
		t.Fatal(err)
	}
	if len(told) != 1 || told[0].Signer == 0 || told[0].Generation != 1 || told[0].NotAfter.IsZero() {
		t.Errorf("told %+v", told)
	}
}
