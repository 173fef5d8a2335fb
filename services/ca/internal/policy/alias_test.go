package policy

import (
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/services/ca/internal/csr"
	"fairlead.dev/services/ca/internal/rejection"
)

// An agent that does not know the new trust domain yet asks for its name in the old one.
func TestNamesOfAnAlias(t *testing.T) {
	p := newPolicy(t)
	cfg := p.cfg
	cfg.Aliases = []spiffeid.TrustDomain{spiffeid.RequireTrustDomainFromString("old.example")}
	migrating, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	const before = "spiffe://old.example/ns/default/sa/reviews"
	for name, tc := range map[string]struct {
		policy *Policy
		uris   []string
		reason rejection.Reason
	}{
		"the name before":                {migrating, []string{before}, ""},
		"the name now":                   {migrating, []string{caller}, ""},
		"none":                           {migrating, nil, ""},
		"both":                           {migrating, []string{before, caller}, rejection.CSRNames},
		"another's in the alias":         {migrating, []string{"spiffe://old.example/ns/other/sa/reviews"}, rejection.ForeignIdentity},
		"its own in a foreign domain":    {migrating, []string{"spiffe://foreign/ns/default/sa/reviews"}, rejection.ForeignIdentity},
		"the alias in another spelling":  {migrating, []string{"spiffe://OLD.example/ns/default/sa/reviews"}, rejection.ForeignIdentity},
		"the name before, without alias": {p, []string{before}, rejection.ForeignIdentity},
	} {
		got, err := tc.policy.Decide(newRequest(t, caller, csr.Names{URIs: tc.uris}), now, issuer)
		if tc.reason == "" {
			if err != nil || len(got.URIs) != 1 || got.URIs[0].String() != caller {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			continue
		}
		if rejected, ok := rejection.From(err); !ok || rejected.Reason != tc.reason {
			t.Errorf("%s: %v, want reason %s", name, err, tc.reason)
		}
	}
	// Callers are turned into those of the own trust domain by package authn, where bans see them; here none is.
	if _, err := migrating.Decide(newRequest(t, before, csr.Names{}), now, issuer); err == nil {
		t.Error("a caller that nobody has turned got a certificate")
	}
	impersonator := newRequest(t, "spiffe://cluster.local/ns/istio-system/sa/ztunnel", csr.Names{})
	impersonator.Impersonate = before
	if _, err := migrating.Decide(impersonator, now, issuer); err == nil {
		t.Error("an identity of an alias, which bans do not see, was impersonated")
	}
	cfg.Aliases = append(cfg.Aliases, domain)
	if _, err := New(cfg); err == nil {
		t.Error("an alias of itself was taken")
	}
}
