package policy

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/csr"
	"fairlead.dev/services/ca/internal/rejection"
	"fairlead.dev/services/ca/internal/tokentime"
)

var (
	domain = spiffeid.RequireTrustDomainFromString("cluster.local")
	now    = time.Date(2026, 3, 1, 12, 0, 0, 500, time.UTC)
	issuer = Issuer{NotBefore: now.Add(-24 * time.Hour).Truncate(time.Second), NotAfter: now.Add(30 * 24 * time.Hour).Truncate(time.Second)}
)

const caller = "spiffe://cluster.local/ns/default/sa/reviews"

func newPolicy(t *testing.T) *Policy {
	t.Helper()
	dns, err := ParseDNSNames([]string{"default/details=details.default.svc,details", "default/details=details"})
	if err != nil {
		t.Fatal(err)
	}
	may, err := ParseImpersonators([]string{"istio-system/ztunnel=default/*,prod/web"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{
		TrustDomain: domain, DefaultTTL: time.Hour, MinTTL: 30 * time.Second, MaxTTL: 24 * time.Hour,
		MaxRenewalAge: 72 * time.Hour, ClockSkew: 2 * time.Minute, DNSNames: dns, Impersonators: may,
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newRequest(t *testing.T, id string, names csr.Names) Request {
	t.Helper()
	return Request{Caller: spiffeid.RequireFromString(id), TokenTime: now, CSR: &csr.Request{PublicKey: catest.Key(t).Public(), Names: names}}
}

func TestDecideTemplate(t *testing.T) {
	p := newPolicy(t)
	for name, tc := range map[string]struct {
		id    string
		names csr.Names
		dns   []string
	}{
		"no names":            {caller, csr.Names{}, nil},
		"own URI":             {caller, csr.Names{URIs: []string{caller}}, nil},
		"configured, unasked": {"spiffe://cluster.local/ns/default/sa/details", csr.Names{}, []string{"details.default.svc", "details"}},
		"configured, asked": {
			"spiffe://cluster.local/ns/default/sa/details", csr.Names{DNS: []string{"details", "details.default.svc"}},
			[]string{"details.default.svc", "details"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := p.Decide(newRequest(t, tc.id, tc.names), now, issuer)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.URIs) != 1 || got.URIs[0].String() != tc.id {
				t.Errorf("URIs %v, want %s", got.URIs, tc.id)
			}
			if diff := cmp.Diff(tc.dns, got.DNSNames); diff != "" {
				t.Errorf("DNS names (-want +got):\n%s", diff)
			}
			if got.IsCA || !got.BasicConstraintsValid || got.KeyUsage != x509.KeyUsageDigitalSignature || len(got.ExtKeyUsage) != 2 {
				t.Errorf("template is not a TLS leaf: %+v", got)
			}
		})
	}
}

func TestRSAKeyHasKeyEncipherment(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	req := newRequest(t, caller, csr.Names{})
	req.CSR.PublicKey = key.Public()
	got, err := newPolicy(t).Decide(req, now, issuer)
	if err != nil || got.KeyUsage&x509.KeyUsageKeyEncipherment == 0 {
		t.Errorf("key usage %v, %v", got, err)
	}
}

func TestLifetimeIsClamped(t *testing.T) {
	p := newPolicy(t)
	whole := now.Truncate(time.Second)
	for name, tc := range map[string]struct {
		seconds           int64
		issuer            Issuer
		notBefore, notAft time.Time
	}{
		"default":              {0, issuer, whole.Add(-2 * time.Minute), whole.Add(time.Hour)},
		"asked for":            {60, issuer, whole.Add(-2 * time.Minute), whole.Add(time.Minute)},
		"below the shortest":   {1, issuer, whole.Add(-2 * time.Minute), whole.Add(30 * time.Second)},
		"above the longest":    {48 * 3600, issuer, whole.Add(-2 * time.Minute), whole.Add(24 * time.Hour)},
		"overflows a duration": {math.MaxInt64, issuer, whole.Add(-2 * time.Minute), whole.Add(24 * time.Hour)},
		"root ends first": {
			3600, Issuer{NotBefore: issuer.NotBefore, NotAfter: whole.Add(10 * time.Minute)}, whole.Add(-2 * time.Minute),
			whole.Add(10 * time.Minute),
		},
		"root is younger than the skew": {
			60, Issuer{NotBefore: whole.Add(-time.Minute), NotAfter: issuer.NotAfter}, whole.Add(-time.Minute), whole.Add(time.Minute),
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := newRequest(t, caller, csr.Names{})
			req.TTLSeconds = tc.seconds
			got, err := p.Decide(req, now, tc.issuer)
			if err != nil {
				t.Fatal(err)
			}
			if !got.NotBefore.Equal(tc.notBefore) || !got.NotAfter.Equal(tc.notAft) {
				t.Errorf("valid %s to %s, want %s to %s", got.NotBefore, got.NotAfter, tc.notBefore, tc.notAft)
			}
		})
	}
}

func TestDecideRejects(t *testing.T) {
	p := newPolicy(t)
	other := "spiffe://cluster.local/ns/other/sa/reviews"
	for name, tc := range map[string]struct {
		req    Request
		at     time.Time
		kind   rejection.Kind
		reason rejection.Reason
	}{
		"other trust domain": {req: newRequest(t, "spiffe://example.org/ns/default/sa/reviews", csr.Names{}), kind: rejection.Denied,
			reason: rejection.ForeignTrustDomain},
		"trust domain itself": {req: newRequest(t, "spiffe://cluster.local", csr.Names{}), kind: rejection.Denied,
			reason: rejection.IdentityForm},
		"longer path": {req: newRequest(t, caller+"/x", csr.Names{}), kind: rejection.Denied, reason: rejection.IdentityForm},
		"other order": {req: newRequest(t, "spiffe://cluster.local/sa/reviews/ns/default", csr.Names{}), kind: rejection.Denied,
			reason: rejection.IdentityForm},
		"upper case": {req: newRequest(t, "spiffe://cluster.local/ns/Default/sa/reviews", csr.Names{}), kind: rejection.Denied,
			reason: rejection.IdentityForm},
		"dots in namespace": {req: newRequest(t, "spiffe://cluster.local/ns/a.b/sa/reviews", csr.Names{}), kind: rejection.Denied,
			reason: rejection.IdentityForm},
		"another's URI": {req: newRequest(t, caller, csr.Names{URIs: []string{other}}), kind: rejection.Denied,
			reason: rejection.ForeignIdentity},
		"own URI, port": {
			req: newRequest(t, caller, csr.Names{URIs: []string{"spiffe://cluster.local:443/ns/default/sa/reviews"}}), kind: rejection.Denied,
			reason: rejection.ForeignIdentity,
		},
		"own URI, upper case": {
			req: newRequest(t, caller, csr.Names{URIs: []string{"SPIFFE://cluster.local/ns/default/sa/reviews"}}), kind: rejection.Denied,
			reason: rejection.ForeignIdentity,
		},
		"two URIs": {req: newRequest(t, caller, csr.Names{URIs: []string{caller, other}}), kind: rejection.Invalid, reason: rejection.CSRNames},
		"DNS name": {req: newRequest(t, caller, csr.Names{URIs: []string{caller}, DNS: []string{"details"}}), kind: rejection.Denied,
			reason: rejection.CSRNames},
		"IP address": {req: newRequest(t, caller, csr.Names{IPs: []netip.Addr{netip.MustParseAddr("::1")}}), kind: rejection.Denied,
			reason: rejection.CSRNames},
		"email": {req: newRequest(t, caller, csr.Names{Emails: []string{"a@b"}}), kind: rejection.Denied, reason: rejection.CSRNames},
		"one DNS name of two": {
			req: newRequest(t, "spiffe://cluster.local/ns/default/sa/details", csr.Names{DNS: []string{"details"}}), kind: rejection.Denied,
			reason: rejection.CSRNames,
		},
		"root has ended": {req: newRequest(t, caller, csr.Names{}), at: issuer.NotAfter, kind: rejection.Unavailable,
			reason: rejection.IssuerExpired},
		"negative lifetime": {req: with(newRequest(t, caller, csr.Names{}), func(r *Request) { r.TTLSeconds = -1 }), kind: rejection.Invalid,
			reason: rejection.ValidityNegative},
		"impersonation": {req: with(newRequest(t, caller, csr.Names{}), func(r *Request) { r.Impersonate = other }), kind: rejection.Denied,
			reason: rejection.Impersonation},
		"impersonates no id": {req: with(newRequest(t, caller, csr.Names{}), func(r *Request) { r.Impersonate = "reviews" }),
			kind: rejection.Invalid, reason: rejection.IdentityForm},
	} {
		t.Run(name, func(t *testing.T) {
			at := now
			if !tc.at.IsZero() {
				at = tc.at
			}
			got, err := p.Decide(tc.req, at, issuer)
			if err == nil {
				t.Fatalf("granted %v", got.URIs)
			}
			rejected, ok := rejection.From(err)
			if !ok || rejected.Kind != tc.kind || rejected.Reason != tc.reason {
				t.Errorf("rejected with %v, want kind %d, reason %s", err, tc.kind, tc.reason)
			}
		})
	}
}

// A certificate says when its owner last showed a token. One renewed with a certificate takes the time over.
func TestRenewalByCertificateEndsAtMaxRenewalAge(t *testing.T) {
	p := newPolicy(t)
	for name, tc := range map[string]struct {
		tokenTime     time.Time
		byCertificate bool
		needsToken    bool
		rejected      bool
	}{
		"by token":                             {tokenTime: now},
		"by token, which the signer needs":     {tokenTime: now, needsToken: true},
		"renewed, but the signer needs tokens": {tokenTime: now, byCertificate: true, needsToken: true, rejected: true},
		"renewed, at once":                     {tokenTime: now, byCertificate: true},
		"renewed, at the end":                  {tokenTime: now.Add(-72 * time.Hour), byCertificate: true},
		"renewed, after the end":               {tokenTime: now.Add(-72*time.Hour - time.Nanosecond), byCertificate: true, rejected: true},
		"renewed, no token ever":               {byCertificate: true, rejected: true},
		"renewed, clock set back":              {tokenTime: now.Add(time.Minute), byCertificate: true},
	} {
		t.Run(name, func(t *testing.T) {
			req := newRequest(t, caller, csr.Names{})
			req.ByCertificate, req.TokenTime = tc.byCertificate, tc.tokenTime
			by := issuer
			by.NeedsToken = tc.needsToken
			got, err := p.Decide(req, now, by)
			if tc.rejected {
				rejected, ok := rejection.From(err)
				if !ok || rejected.Kind != rejection.Denied || rejected.Reason != rejection.RenewalAge ||
					!strings.Contains(rejected.Detail, "send a token") {
					t.Fatalf("got %v, want a rejection that asks for a token", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if at := tokentime.Of(&x509.Certificate{Extensions: got.ExtraExtensions}); !at.Equal(tc.tokenTime.Truncate(time.Second)) {
				t.Errorf("the certificate says that the last token was shown at %s, want %s", at, tc.tokenTime)
			}
		})
	}
}

func with(r Request, change func(*Request)) Request { change(&r); return r }

func TestImpersonationIssuesForTheImpersonatedWorkload(t *testing.T) {
	p := newPolicy(t)
	req := newRequest(t, "spiffe://cluster.local/ns/istio-system/sa/ztunnel", csr.Names{URIs: []string{caller}})
	req.Impersonate = caller
	got, err := p.Decide(req, now, issuer)
	if err != nil || got.URIs[0].String() != caller {
		t.Errorf("got %v, %v, want %s", got, err, caller)
	}
	// The names are checked against the identity that is issued, not the caller's.
	req.CSR.Names.URIs = []string{req.Caller.String()}
	if _, err := p.Decide(req, now, issuer); err == nil {
		t.Error("accepted a CSR for the caller with the metadata of another")
	}
}

func TestMalformedRulesAreRejected(t *testing.T) {
	for _, rule := range []string{"", "a", "a/b", "a/b=", "=a", "a/b=c_d", "A/b=c", "a/b=c,", "a/b=*.c"} {
		if got, err := ParseDNSNames([]string{rule}); err == nil {
			t.Errorf("DNS names %q accepted as %v", rule, got)
		}
	}
	for _, rule := range []string{"", "a/b", "a/b=", "a/b=c", "a/b=*", "a/b=*/*", "a/b=*/c", "a/b=c/d,", "*/b=c/d"} {
		if got, err := ParseImpersonators([]string{rule}); err == nil {
			t.Errorf("impersonators %q accepted as %v", rule, got)
		}
	}
}

func TestNewRejectsConfig(t *testing.T) {
	good := Config{TrustDomain: domain, DefaultTTL: time.Hour, MaxTTL: time.Hour}
	for says, change := range map[string]func(*Config){
		"trust domain": func(c *Config) { c.TrustDomain = spiffeid.TrustDomain{} },
		"lifetime":     func(c *Config) { c.DefaultTTL = 0 },
		"longest":      func(c *Config) { c.MaxTTL = time.Minute },
		"future":       func(c *Config) { c.ClockSkew = -time.Second },
		"shortest":     func(c *Config) { c.MinTTL = 2 * time.Hour },
		"last token":   func(c *Config) { c.MaxRenewalAge = -time.Second },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v", says, err)
		}
	}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
}
