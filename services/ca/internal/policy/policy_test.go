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
	"fairlead.dev/services/ca/internal/proof"
	"fairlead.dev/services/ca/internal/refusal"
)

var (
	domain = spiffeid.RequireTrustDomainFromString("cluster.local")
	now    = time.Date(2026, 3, 1, 12, 0, 0, 500, time.UTC)
	issuer = Validity{NotBefore: now.Add(-24 * time.Hour).Truncate(time.Second), NotAfter: now.Add(30 * 24 * time.Hour).Truncate(time.Second)}
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
		MaxRenewalAge: 72 * time.Hour, Backdate: 2 * time.Minute, DNSNames: dns, Impersonators: may,
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ask(t *testing.T, id string, names csr.Names) Ask {
	t.Helper()
	return Ask{Caller: spiffeid.RequireFromString(id), Proven: now, CSR: &csr.Request{PublicKey: catest.Key(t).Public(), Names: names}}
}

func TestTemplate(t *testing.T) {
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
			"spiffe://cluster.local/ns/default/sa/details", csr.Names{DNS: []string{"details", "details.default.svc"}}, []string{"details.default.svc", "details"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := p.Decide(ask(t, tc.id, tc.names), now, issuer)
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

func TestRSAKeysMayEncipher(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	a := ask(t, caller, csr.Names{})
	a.CSR.PublicKey = key.Public()
	got, err := newPolicy(t).Decide(a, now, issuer)
	if err != nil || got.KeyUsage&x509.KeyUsageKeyEncipherment == 0 {
		t.Errorf("key usage %v, %v", got, err)
	}
}

func TestLifetime(t *testing.T) {
	p := newPolicy(t)
	whole := now.Truncate(time.Second)
	for name, tc := range map[string]struct {
		seconds           int64
		issuer            Validity
		notBefore, notAft time.Time
	}{
		"default":              {0, issuer, whole.Add(-2 * time.Minute), whole.Add(time.Hour)},
		"wished":               {60, issuer, whole.Add(-2 * time.Minute), whole.Add(time.Minute)},
		"raised":               {1, issuer, whole.Add(-2 * time.Minute), whole.Add(30 * time.Second)},
		"clamped":              {48 * 3600, issuer, whole.Add(-2 * time.Minute), whole.Add(24 * time.Hour)},
		"clamped, not wrapped": {math.MaxInt64, issuer, whole.Add(-2 * time.Minute), whole.Add(24 * time.Hour)},
		"root ends first": {
			3600, Validity{issuer.NotBefore, whole.Add(10 * time.Minute)}, whole.Add(-2 * time.Minute), whole.Add(10 * time.Minute),
		},
		"root is younger than the skew": {
			60, Validity{whole.Add(-time.Minute), issuer.NotAfter}, whole.Add(-time.Minute), whole.Add(time.Minute),
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := ask(t, caller, csr.Names{})
			a.TTLSeconds = tc.seconds
			got, err := p.Decide(a, now, tc.issuer)
			if err != nil {
				t.Fatal(err)
			}
			if !got.NotBefore.Equal(tc.notBefore) || !got.NotAfter.Equal(tc.notAft) {
				t.Errorf("valid %s to %s, want %s to %s", got.NotBefore, got.NotAfter, tc.notBefore, tc.notAft)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	p := newPolicy(t)
	other := "spiffe://cluster.local/ns/other/sa/reviews"
	for name, tc := range map[string]struct {
		ask    Ask
		at     time.Time
		kind   refusal.Kind
		reason refusal.Reason
	}{
		"other trust domain":  {ask: ask(t, "spiffe://example.org/ns/default/sa/reviews", csr.Names{}), kind: refusal.Denied, reason: refusal.ForeignTrustDomain},
		"trust domain itself": {ask: ask(t, "spiffe://cluster.local", csr.Names{}), kind: refusal.Denied, reason: refusal.IdentityForm},
		"longer path":         {ask: ask(t, caller+"/x", csr.Names{}), kind: refusal.Denied, reason: refusal.IdentityForm},
		"other order":         {ask: ask(t, "spiffe://cluster.local/sa/reviews/ns/default", csr.Names{}), kind: refusal.Denied, reason: refusal.IdentityForm},
		"upper case":          {ask: ask(t, "spiffe://cluster.local/ns/Default/sa/reviews", csr.Names{}), kind: refusal.Denied, reason: refusal.IdentityForm},
		"dots in namespace":   {ask: ask(t, "spiffe://cluster.local/ns/a.b/sa/reviews", csr.Names{}), kind: refusal.Denied, reason: refusal.IdentityForm},
		"another's URI":       {ask: ask(t, caller, csr.Names{URIs: []string{other}}), kind: refusal.Denied, reason: refusal.ForeignIdentity},
		"own URI, port": {
			ask: ask(t, caller, csr.Names{URIs: []string{"spiffe://cluster.local:443/ns/default/sa/reviews"}}), kind: refusal.Denied, reason: refusal.ForeignIdentity,
		},
		"own URI, upper case": {
			ask: ask(t, caller, csr.Names{URIs: []string{"SPIFFE://cluster.local/ns/default/sa/reviews"}}), kind: refusal.Denied, reason: refusal.ForeignIdentity,
		},
		"two URIs":   {ask: ask(t, caller, csr.Names{URIs: []string{caller, other}}), kind: refusal.Invalid, reason: refusal.CSRNames},
		"DNS name":   {ask: ask(t, caller, csr.Names{URIs: []string{caller}, DNS: []string{"details"}}), kind: refusal.Denied, reason: refusal.CSRNames},
		"IP address": {ask: ask(t, caller, csr.Names{IPs: []netip.Addr{netip.MustParseAddr("::1")}}), kind: refusal.Denied, reason: refusal.CSRNames},
		"email":      {ask: ask(t, caller, csr.Names{Emails: []string{"a@b"}}), kind: refusal.Denied, reason: refusal.CSRNames},
		"one DNS name of two": {
			ask: ask(t, "spiffe://cluster.local/ns/default/sa/details", csr.Names{DNS: []string{"details"}}), kind: refusal.Denied, reason: refusal.CSRNames,
		},
		"root has ended":     {ask: ask(t, caller, csr.Names{}), at: issuer.NotAfter, kind: refusal.Unavailable, reason: refusal.IssuerExpired},
		"negative lifetime":  {ask: with(ask(t, caller, csr.Names{}), func(a *Ask) { a.TTLSeconds = -1 }), kind: refusal.Invalid, reason: refusal.ValidityNegative},
		"impersonation":      {ask: with(ask(t, caller, csr.Names{}), func(a *Ask) { a.Impersonate = other }), kind: refusal.Denied, reason: refusal.Impersonation},
		"impersonates no id": {ask: with(ask(t, caller, csr.Names{}), func(a *Ask) { a.Impersonate = "reviews" }), kind: refusal.Invalid, reason: refusal.IdentityForm},
	} {
		t.Run(name, func(t *testing.T) {
			at := now
			if !tc.at.IsZero() {
				at = tc.at
			}
			got, err := p.Decide(tc.ask, at, issuer)
			if err == nil {
				t.Fatalf("granted %v", got.URIs)
			}
			refused, ok := refusal.From(err)
			if !ok || refused.Kind != tc.kind || refused.Reason != tc.reason {
				t.Errorf("refused with %v, want kind %d, reason %s", err, tc.kind, tc.reason)
			}
		})
	}
}

// A certificate says when its owner last showed a token, and takes that over from the certificate that it was renewed
// with, until the end of renewals.
func TestRenewalsByCertificateEnd(t *testing.T) {
	p := newPolicy(t)
	for name, tc := range map[string]struct {
		proven        time.Time
		byCertificate bool
		refused       bool
	}{
		"by token":                {proven: now},
		"renewed, at once":        {proven: now, byCertificate: true},
		"renewed, at the end":     {proven: now.Add(-72 * time.Hour), byCertificate: true},
		"renewed, after the end":  {proven: now.Add(-72*time.Hour - time.Nanosecond), byCertificate: true, refused: true},
		"renewed, proven never":   {byCertificate: true, refused: true},
		"renewed, clock set back": {proven: now.Add(time.Minute), byCertificate: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := ask(t, caller, csr.Names{})
			a.ByCertificate, a.Proven = tc.byCertificate, tc.proven
			got, err := p.Decide(a, now, issuer)
			if tc.refused {
				refused, ok := refusal.From(err)
				if !ok || refused.Kind != refusal.Denied || refused.Reason != refusal.RenewalAge || !strings.Contains(refused.Detail, "send a token") {
					t.Fatalf("got %v, want a refusal that asks for a token", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if at := proof.Of(&x509.Certificate{Extensions: got.ExtraExtensions}); !at.Equal(tc.proven.Truncate(time.Second)) {
				t.Errorf("the certificate says that the last token was shown at %s, want %s", at, tc.proven)
			}
		})
	}
}

func with(a Ask, change func(*Ask)) Ask { change(&a); return a }

func TestImpersonationNamesTheWorkload(t *testing.T) {
	p := newPolicy(t)
	a := ask(t, "spiffe://cluster.local/ns/istio-system/sa/ztunnel", csr.Names{URIs: []string{caller}})
	a.Impersonate = caller
	got, err := p.Decide(a, now, issuer)
	if err != nil || got.URIs[0].String() != caller {
		t.Errorf("got %v, %v, want %s", got, err, caller)
	}
	// The names are checked against the identity that is issued, not the caller's.
	a.CSR.Names.URIs = []string{a.Caller.String()}
	if _, err := p.Decide(a, now, issuer); err == nil {
		t.Error("accepted a CSR for the caller with the metadata of another")
	}
}

func TestRulesRefused(t *testing.T) {
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

func TestConfigRefused(t *testing.T) {
	good := Config{TrustDomain: domain, DefaultTTL: time.Hour, MaxTTL: time.Hour}
	for says, change := range map[string]func(*Config){
		"trust domain": func(c *Config) { c.TrustDomain = spiffeid.TrustDomain{} },
		"lifetime":     func(c *Config) { c.DefaultTTL = 0 },
		"longest":      func(c *Config) { c.MaxTTL = time.Minute },
		"future":       func(c *Config) { c.Backdate = -time.Second },
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
