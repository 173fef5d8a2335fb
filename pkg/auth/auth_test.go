package auth_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
)

type answer struct {
	peer auth.Peer
	err  error
}

func (a answer) Authenticate(context.Context) (auth.Peer, error) { return a.peer, a.err }

func id(s string) spiffeid.ID { return spiffeid.RequireFromString("spiffe://cluster.local" + s) }

func TestFirstOf(t *testing.T) {
	none := answer{err: auth.ErrNoCredentials}
	bad := answer{err: errors.New("expired")}
	good := answer{peer: auth.Peer{ID: id("/a"), Method: auth.MethodJWT}}
	for name, tc := range map[string]struct {
		of   []auth.Authenticator
		want string
	}{
		"first":                       {[]auth.Authenticator{good, bad}, ""},
		"later":                       {[]auth.Authenticator{none, bad, good}, ""},
		"nothing presented":           {[]auth.Authenticator{none, none}, auth.ErrNoCredentials.Error()},
		"refusal says more than none": {[]auth.Authenticator{none, bad, none}, "expired"},
		"nobody to ask":               {nil, auth.ErrNoCredentials.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := auth.FirstOf(tc.of...).Authenticate(t.Context())
			if tc.want == "" && (err != nil || p.ID != id("/a")) {
				t.Errorf("got %v %v", p, err)
			}
			if tc.want != "" && (err == nil || err.Error() != tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func TestMTLS(t *testing.T) {
	ca := testkit.PKI(t)
	m, err := ca.NewSVID("bookinfo", "reviews").Current()
	if err != nil {
		t.Fatal(err)
	}
	leaf := []*x509.Certificate{m.Certificate.Leaf}
	chains := [][]*x509.Certificate{{m.Certificate.Leaf, ca.Cert}}
	with := func(info credentials.AuthInfo) context.Context {
		return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info})
	}
	p, err := auth.MTLS().Authenticate(with(credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: leaf, VerifiedChains: chains}}))
	if err != nil || p.ID != ca.ID("bookinfo", "reviews") || p.Method != auth.MethodMTLS {
		t.Errorf("got %v %v", p, err)
	}
	for name, ctx := range map[string]context.Context{
		"no peer":        t.Context(),
		"no TLS":         with(nil),
		"no certificate": with(credentials.TLSInfo{}),
	} {
		if _, err := auth.MTLS().Authenticate(ctx); !errors.Is(err, auth.ErrNoCredentials) {
			t.Errorf("%s: %v", name, err)
		}
		if cert := auth.ClientCertificate(ctx); cert != nil {
			t.Errorf("%s: certificate of %v", name, cert.URIs)
		}
	}
	if _, err := auth.MTLS().Authenticate(with(credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: leaf}})); err == nil ||
		errors.Is(err, auth.ErrNoCredentials) {
		t.Errorf("certificate without a verified chain: %v", err)
	}
	foreign := []*x509.Certificate{ca.Cert} // a root's SPIFFE id has no path
	bare := *ca.Cert
	bare.URIs = nil
	foreign[0] = &bare
	if _, err := auth.MTLS().Authenticate(
		with(credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: foreign, VerifiedChains: chains}})); err == nil {
		t.Error("certificate without a SPIFFE id is accepted")
	}
}

// TLS verifies a certificate in the handshake only; MTLS checks its validity in every call.
func TestMTLSRefusesExpiredCertificates(t *testing.T) {
	start := time.Now()
	clock := testkit.NewClock(start)
	ca := testkit.PKI(t)
	m, err := ca.NewSVID("bookinfo", "reviews",
		testkit.Valid(start.Truncate(time.Second), start.Truncate(time.Second).Add(time.Hour))).Current()
	if err != nil {
		t.Fatal(err)
	}
	state := tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{m.Certificate.Leaf}, VerifiedChains: [][]*x509.Certificate{{m.Certificate.Leaf, ca.Cert}},
	}
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
	r := httptest.NewRequest(http.MethodGet, "/debug/", nil)
	r.TLS = &state
	byHTTP := auth.HTTP(auth.MTLSAt(clock), auth.AnyIdentity())
	for _, step := range []struct {
		advance time.Duration
		want    error
	}{{0, nil}, {59 * time.Minute, nil}, {2 * time.Minute, auth.ErrExpired}, {-2 * time.Hour, auth.ErrExpired}} {
		clock.Advance(step.advance)
		if _, err := auth.MTLSAt(clock).Authenticate(ctx); !errors.Is(err, step.want) {
			t.Errorf("%s after the start: got %v, want %v", clock.Now().Sub(start), err, step.want)
		}
		if err := byHTTP(r); !errors.Is(err, step.want) {
			t.Errorf("by HTTP, %s after the start: got %v, want %v", clock.Now().Sub(start), err, step.want)
		}
	}
}

func TestPolicy(t *testing.T) {
	xds, ca, nobody := auth.Peer{ID: id("/ns/istio-system/sa/xds-server")}, auth.Peer{ID: id("/ns/istio-system/sa/ca")}, auth.Peer{}
	policy := auth.Policy{
		"/a.S/*":      auth.AnyIdentity(),
		"/a.S/Secret": auth.IDs(xds.ID.String()),
		"/a.T/Open":   auth.Anonymous(),
		"/a.U/*":      auth.InTrustDomain(spiffeid.RequireTrustDomainFromString("other.example")),
		"/a.V/*":      auth.Any(auth.IDs(ca.ID.String()), auth.IDs(xds.ID.String())),
	}
	if err := policy.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		method string
		peer   auth.Peer
		want   bool
	}{
		{"/a.S/Any", ca, true},
		{"/a.S/Any", nobody, false},
		{"/a.S/Secret", xds, true},
		{"/a.S/Secret", ca, false},
		{"/a.T/Open", nobody, true},
		{"/a.U/X", ca, false},
		{"/a.V/X", ca, true},
		{"/a.V/X", nobody, false},
	} {
		if got := policy.RuleFor(tc.method).Allowed(tc.peer); got != tc.want {
			t.Errorf("%s by %q: %t", tc.method, tc.peer.ID, got)
		}
	}
	for _, method := range []string{"/a.T/Closed", "/a.SX/Any", "/b.S/Any", "a.S/Any", "", "/", "//a.S/Any", "/a.S/Any/More"} {
		if policy.RuleFor(method) != nil {
			t.Errorf("method %q has a rule", method)
		}
	}
	if !auth.IsAnonymous(policy["/a.T/Open"]) || auth.IsAnonymous(policy["/a.S/*"]) {
		t.Error("IsAnonymous is wrong")
	}
}

func TestPolicyValidate(t *testing.T) {
	for want, p := range map[string]auth.Policy{
		"must be /pkg.Service/Method": {"a.S/M": auth.AnyIdentity()},
		"rule is nil":                 {"/a.S/M": nil},
		"not-a-spiffe-id":             {"/a.S/M": auth.IDs("not-a-spiffe-id")},
		"names no identity":           {"/a.S/M": auth.IDs()},
	} {
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestHTTP(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	j := newJWT(t, issuer, testkit.NewClock(time.Now()))
	check := auth.HTTP(j, auth.IDs("spiffe://cluster.local/ns/istio-system/sa/fairlead-admin"))

	r := httptest.NewRequest(http.MethodGet, "/debug/", nil)
	if err := check(r); !errors.Is(err, auth.ErrNoCredentials) {
		t.Errorf("anonymous: %v", err)
	}
	r.Header.Set("Authorization", "Bearer "+issuer.Token("istio-system", "fairlead-admin", "fairlead"))
	if err := check(r); err != nil {
		t.Errorf("admin: %v", err)
	}
	r.Header.Set("Authorization", "Bearer "+issuer.Token("bookinfo", "reviews", "fairlead"))
	if err := check(r); !errors.Is(err, auth.ErrForbidden) {
		t.Errorf("workload: %v", err)
	}
}

func TestPeerContext(t *testing.T) {
	if _, ok := auth.PeerFrom(t.Context()); ok {
		t.Error("a peer from nowhere")
	}
	want := auth.Peer{ID: id("/a"), Method: auth.MethodMTLS}
	if got, ok := auth.PeerFrom(auth.NewContext(t.Context(), want)); !ok || got != want {
		t.Errorf("got %v", got)
	}
}

func TestWorkloadID(t *testing.T) {
	got, err := auth.WorkloadID(td, "bookinfo", "reviews")
	if err != nil || got != id("/ns/bookinfo/sa/reviews") {
		t.Errorf("got %v %v", got, err)
	}
	if _, err := auth.WorkloadID(td, "", "reviews"); err == nil {
		t.Error("empty namespace is accepted")
	}
	if _, err := auth.WorkloadID(spiffeid.TrustDomain{}, "a", "b"); err == nil {
		t.Error("empty trust domain is accepted")
	}
}

func TestWorkloadOf(t *testing.T) {
	if namespace, account, ok := auth.WorkloadOf(id("/ns/bookinfo/sa/reviews")); namespace != "bookinfo" || account != "reviews" || !ok {
		t.Errorf("got %q %q %t", namespace, account, ok)
	}
	for _, other := range []spiffeid.ID{{}, id(""), id("/ns/bookinfo/sa"), id("/ns/bookinfo/sa/reviews/v1"), id("/sa/reviews/ns/bookinfo")} {
		if namespace, account, ok := auth.WorkloadOf(other); namespace != "" || account != "" || ok {
			t.Errorf("%s: got %q %q %t", other, namespace, account, ok)
		}
	}
}
