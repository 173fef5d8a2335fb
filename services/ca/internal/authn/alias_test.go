package authn

import (
	"errors"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
)

func TestCallersOfAnAliasAreOfTheOwnDomain(t *testing.T) {
	own := spiffeid.RequireTrustDomainFromString("new.example")
	aliases := []spiffeid.TrustDomain{spiffeid.RequireTrustDomainFromString("cluster.local"), spiffeid.RequireTrustDomainFromString("older")}
	for caller, want := range map[string]string{
		"spiffe://cluster.local/ns/shop/sa/web":       "spiffe://new.example/ns/shop/sa/web",
		"spiffe://older/ns/shop/sa/web":               "spiffe://new.example/ns/shop/sa/web",
		"spiffe://new.example/ns/shop/sa/web":         "spiffe://new.example/ns/shop/sa/web",
		"spiffe://foreign/ns/shop/sa/web":             "spiffe://foreign/ns/shop/sa/web",
		"spiffe://cluster.local.evil/ns/shop/sa/web":  "spiffe://cluster.local.evil/ns/shop/sa/web",
		"spiffe://foreign/cluster.local/ns/shop/sa/a": "spiffe://foreign/cluster.local/ns/shop/sa/a",
		"spiffe://cluster.local":                      "spiffe://new.example",
	} {
		next := fixed{peer: auth.Peer{ID: spiffeid.RequireFromString(caller), Method: auth.MethodMTLS}}
		got, err := InDomain(next, own, aliases).Authenticate(t.Context())
		if err != nil || got.ID.String() != want || got.Method != auth.MethodMTLS {
			t.Errorf("%s is %v, %v, want %s", caller, got, err, want)
		}
		if got, err := InDomain(next, own, nil).Authenticate(t.Context()); err != nil || got.ID.String() != caller {
			t.Errorf("without aliases %s is %v, %v", caller, got, err)
		}
	}
	if _, err := InDomain(fixed{err: auth.ErrNoCredentials}, own, aliases).Authenticate(t.Context()); !errors.Is(err, auth.ErrNoCredentials) {
		t.Errorf("got %v", err)
	}
}
