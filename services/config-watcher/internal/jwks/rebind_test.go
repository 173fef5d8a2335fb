package jwks_test

import (
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

// A name whose owner answers another address once it has been checked leads nowhere else.
func TestANameThatChangesItsAddressLeadsNowhereElse(t *testing.T) {
	var last atomic.Int32
	last.Store(2)
	testkit.Resolve(t, func() [4]byte { return [4]byte{127, 0, 0, byte(last.Load())} })
	inner := newSite(t, httptest.NewServer)
	inner.serve(keySet(t, "a"))
	source := contract.KeySource{URI: "http://rebind.example.com" + inner.URL[strings.LastIndex(inner.URL, ":"):]}
	f := newFixture(t, options{addresses: fetch.Addresses{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}}})
	f.submit(request("shop", "r", rule(source.URI)))
	f.told(source, "", configv1.JwksProblem_JWKS_PROBLEM_UNREACHABLE) // it may be asked, and nobody listens
	last.Store(1)
	for i := range 3 {
		f.advanceTo(*f.state("missing", i+1).Next)
		f.told(source, "", configv1.JwksProblem_JWKS_PROBLEM_FORBIDDEN)
	}
	if n := inner.requests.Load(); n > 0 {
		t.Errorf("the inner service was asked %d times", n)
	}
}
