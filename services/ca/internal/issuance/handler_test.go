package issuance

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/admission"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/authority/authoritytest"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/policy"
	"fairlead.dev/services/ca/internal/rejection"
)

// brokenKey cannot sign, like one in a key store that is disconnected.
type brokenKey struct{ crypto.Signer }

func (brokenKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("token slot 7: device removed")
}

func newService(t testing.TB, ca *testkit.CA, clock *testkit.Clock, sign *authority.Authority, log *bytes.Buffer) *Service {
	t.Helper()
	gate, err := admission.New(admission.Config{Workers: 1, Queue: 1, Wait: time.Second, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(policy.Config{TrustDomain: ca.TrustDomain, DefaultTTL: time.Hour, MaxTTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{
		Gate: gate, Policy: p, Signer: sign, Clock: clock, Log: slog.New(slog.NewJSONHandler(log, nil)),
		Metrics: NewMetrics(prometheus.NewRegistry(), gate), Random: func() float64 { return 0 },
	})
}

func TestSignerErrorIsLoggedAndNotSentToTheCaller(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ca, clock := testkit.NewCA(t, "cluster.local", start), testkit.NewClock(start)
	var log bytes.Buffer
	s := newService(t, ca, clock, authoritytest.New(t, ca.Cert, brokenKey{ca.Key}), &log)
	ctx := auth.NewContext(t.Context(), auth.Peer{ID: ca.ID("default", "reviews"), Method: auth.MethodJWT})
	_, err := s.CreateCertificate(ctx, &security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})})
	if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "slot") {
		t.Errorf("got %v, want UNAVAILABLE without the signer's words", err)
	}
	if !strings.Contains(log.String(), "slot 7") {
		t.Errorf("the log does not say what happened: %s", log.String())
	}
	if got := s.cfg.Metrics.Counts().Refused[rejection.SignerAway]; got != 1 {
		t.Errorf("%d failures of the signer counted, want 1", got)
	}
}

func TestExpiredRootIsUnavailable(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ca := testkit.NewCA(t, "cluster.local", start)
	clock := testkit.NewClock(ca.Cert.NotAfter.Add(time.Second))
	s := newService(t, ca, clock, authoritytest.New(t, ca.Cert, ca.Key), &bytes.Buffer{})
	ctx := auth.NewContext(t.Context(), auth.Peer{ID: ca.ID("default", "reviews"), Method: auth.MethodJWT})
	_, err := s.CreateCertificate(ctx, &security.IstioCertificateRequest{Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{})})
	st := status.Convert(err)
	if st.Code() != codes.Unavailable || !strings.Contains(st.Message(), "expired") {
		t.Errorf("got %v, want UNAVAILABLE", err)
	}
	if info, ok := st.Details()[0].(*errdetails.ErrorInfo); !ok || info.GetReason() != string(rejection.IssuerExpired) {
		t.Errorf("details %v, want the reason %s", st.Details(), rejection.IssuerExpired)
	}
}

func TestUnauthenticatedCallerIsRejected(t *testing.T) {
	ca := testkit.PKI(t)
	s := newService(t, ca, testkit.NewClock(time.Now()), authoritytest.New(t, ca.Cert, ca.Key), &bytes.Buffer{})
	if _, err := s.CreateCertificate(context.Background(), &security.IstioCertificateRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("got %v, want UNAUTHENTICATED", err)
	}
}

// refusals are the identities that a check refuses, with the reason.
type refusals map[spiffeid.ID]rejection.Reason

func (r refusals) verdict(id spiffeid.ID) error {
	if reason, ok := r[id]; ok {
		return rejection.New(rejection.Denied, reason, "%s", id)
	}
	return nil
}

type bans struct{ refusals }

func (b bans) Check(id spiffeid.ID) error { return b.verdict(id) }

type existing struct{ refusals }

func (e existing) Check(_ context.Context, caller auth.Peer, _ time.Time) error {
	return e.verdict(caller.ID)
}

// Who may ask for another's certificate gets none for an identity that gets none itself.
func TestImpersonatedIdentitiesAreCheckedLikeCallers(t *testing.T) {
	ca := testkit.PKI(t)
	clock := testkit.NewClock(time.Now())
	s := newService(t, ca, clock, authoritytest.New(t, ca.Cert, ca.Key), &bytes.Buffer{})
	impersonators, err := policy.ParseImpersonators([]string{"istio-system/ztunnel=shop/*"})
	if err != nil {
		t.Fatal(err)
	}
	s.cfg.Policy, err = policy.New(policy.Config{TrustDomain: ca.TrustDomain, DefaultTTL: time.Hour, MaxTTL: time.Hour,
		Impersonators: impersonators})
	if err != nil {
		t.Fatal(err)
	}
	s.cfg.Bans = bans{refusals{ca.ID("shop", "banned"): rejection.Banned}}
	s.cfg.Accounts = existing{refusals{ca.ID("shop", "gone"): rejection.AccountGone}}
	ctx := auth.NewContext(t.Context(), auth.Peer{ID: ca.ID("istio-system", "ztunnel"), Method: auth.MethodJWT})
	for account, want := range map[string]rejection.Reason{"web": "", "banned": rejection.Banned, "gone": rejection.AccountGone} {
		before := s.cfg.Metrics.Counts().Refused[want]
		_, err := s.CreateCertificate(ctx, &security.IstioCertificateRequest{
			Csr: catest.CSR(t, catest.Key(t), &x509.CertificateRequest{}),
			Metadata: &structpb.Struct{
				Fields: map[string]*structpb.Value{ImpersonatedIdentity: structpb.NewStringValue(ca.ID("shop", account).String())}},
		})
		if refused := s.cfg.Metrics.Counts().Refused[want] - before; (err != nil) != (want != "") || want != "" && refused != 1 {
			t.Errorf("%s: %v, want the reason %q", account, err, want)
		}
	}
}

// Istio's agent sends the field CertSigner with each request, and an empty text unless ISTIO_META_CERT_SIGNER is set.
func TestRequestsOfIstiosAgentAreIssued(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ca, clock := testkit.NewCA(t, "cluster.local", start), testkit.NewClock(start)
	s := newService(t, ca, clock, authoritytest.New(t, ca.Cert, ca.Key), &bytes.Buffer{})
	ctx := auth.NewContext(t.Context(), auth.Peer{ID: ca.ID("default", "reviews"), Method: auth.MethodJWT})
	for _, name := range []string{"", "fast"} {
		_, err := s.CreateCertificate(ctx, &security.IstioCertificateRequest{
			Csr:      catest.CSR(t, catest.Key(t), &x509.CertificateRequest{}),
			Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{CertSigner: structpb.NewStringValue(name)}},
		})
		if err != nil {
			t.Errorf("CertSigner %q: %v", name, err)
		}
	}
}
