package jwks_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// slow answers after release is closed.
func slow(document string, release <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
			_, _ = w.Write([]byte(document))
		case <-r.Context().Done():
		}
	}
}

func rule(uri string) *security.JWTRule { return &security.JWTRule{Issuer: "i", JwksUri: uri} }

func service(name string) normalise.Change {
	k := object.Key{Kind: "Service", Namespace: "shop", Name: name}
	return normalise.Change{Key: k, Object: &object.Object{Key: k}}
}

// A new jwksUri refuses no token while it is fetched: the former keys count until the new ones are there, and whoever
// waits for the change waits for them too.
func TestANewAddressTakesEffectWithItsKeys(t *testing.T) {
	s := newSite(t, httptest.NewServer)
	f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}})
	first, second := keySet(t, "a"), keySet(t, "b")
	a, b := contract.KeySource{URI: s.URL + "/a"}, contract.KeySource{URI: s.URL + "/b"}
	s.serve(first)
	f.submit(request("shop", "r", rule(a.URI)))
	f.told(a, canonical(t, first), none)
	release := make(chan struct{})
	s.set(slow(second, release))
	f.submit(service("one"), request("shop", "r", rule(b.URI)), service("two"))
	if got := f.order(); got != "r one two" {
		t.Errorf("passed on: %q; want what needs no keys at once", got)
	}
	waited := make(chan error, 1)
	go func() { waited <- f.Wait(t.Context()) }()
	if f.Settled() || f.get(b) != nil || f.get(a) == nil {
		t.Errorf("while the keys are fetched: settled %v, former %v, new %v", f.Settled(), f.get(a), f.get(b))
	}
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Wait(short); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting ends with %v", err)
	}
	select {
	case err := <-waited:
		t.Errorf("waited for nothing: %v", err)
	default:
	}
	close(release)
	testkit.NoError(t, <-waited)
	f.told(b, canonical(t, second), none)
	if f.get(a) != nil || f.order() != "r one two r" || !f.Settled() {
		t.Errorf("afterwards: former keys %v, passed on %q", f.get(a), f.order())
	}
}

// A server that hangs holds an object for two seconds, however often the object changes meanwhile.
func TestAnObjectWaitsForItsKeysWithABound(t *testing.T) {
	s := newSite(t, httptest.NewServer)
	f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}})
	s.set(slow("", nil))
	f.submit(request("shop", "r", rule(s.URL+"/1")))
	f.clock.Advance(time.Second)
	f.submit(request("shop", "r", rule(s.URL+"/2")))
	testkit.Eventually(t, 5*time.Second, func() error {
		if s.requests.Load() < 2 {
			return errors.New("not asked yet")
		}
		return nil
	})
	if got := f.order(); got != "" {
		t.Errorf("passed on: %q", got)
	}
	f.clock.Advance(time.Second)
	f.told(contract.KeySource{URI: s.URL + "/2"}, "", configv1.JwksProblem_JWKS_PROBLEM_PENDING)
	if got := f.order(); got != "r" || f.get(contract.KeySource{URI: s.URL + "/1"}) != nil {
		t.Errorf("passed on: %q", got)
	}
	// One that is deleted while it waits is not passed on afterwards.
	f.submit(request("shop", "deleted", rule(s.URL+"/3")))
	f.submit(normalise.Change{Key: request("shop", "deleted").Key})
	f.clock.Advance(5 * time.Second)
	if got := f.order(); got != "r -deleted" || f.get(contract.KeySource{URI: s.URL + "/3"}) != nil {
		t.Errorf("passed on: %q", got)
	}
}

func TestInlineKeysAndOtherObjectsAreNotHeld(t *testing.T) {
	f := newFixture(t, options{})
	other := normalise.Change{Key: object.Key{Group: kinds.GroupSecurity, Kind: "RequestAuthentication", Namespace: "shop", Name: "broken"}}
	other.Object = &object.Object{Key: other.Key, Body: "no RequestAuthentication"}
	f.submit(request("shop", "inline", &security.JWTRule{Issuer: "i", Jwks: "{}"}), request("shop", "closed"), other, service("s"))
	if got := f.order(); got != "s inline closed broken" || len(f.States()) != 0 || !f.Settled() {
		t.Errorf("passed on: %q, sources %v", got, f.States())
	}
}

// No namespace has more than its share of addresses, and what exists is not displaced by what is newer.
func TestAddressesAreBoundedByNamespace(t *testing.T) {
	s := newSite(t, httptest.NewServer)
	keys := keySet(t, "a")
	s.serve(keys)
	f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}, limit: 2})
	aged := func(name string, age time.Duration, uris ...string) normalise.Change {
		c := request("greedy", name)
		for _, uri := range uris {
			ra := c.Object.Body.(*security.RequestAuthentication)
			ra.JwtRules = append(ra.JwtRules, rule(s.URL+uri))
		}
		c.Object.Created = start.Add(-age)
		return c
	}
	source := func(uri string) contract.KeySource { return contract.KeySource{URI: s.URL + uri} }
	f.submit(aged("old", time.Hour, "/1"), aged("new", time.Minute, "/2", "/3", "/4"), request("modest", "r", rule(s.URL+"/5")))
	good := canonical(t, keys)
	for _, uri := range []string{"/1", "/2", "/5"} {
		f.told(source(uri), good, none)
	}
	for _, uri := range []string{"/3", "/4"} {
		f.told(source(uri), "", configv1.JwksProblem_JWKS_PROBLEM_LEFT_OUT)
	}
	if problems, missing := f.Problems(aged("new", 0).Key); !missing || len(problems) != 2 {
		t.Errorf("the owner is told %q", problems)
	}
	// An address that another namespace names too is that one's.
	f.submit(request("modest", "s", rule(s.URL+"/4")))
	f.told(source("/4"), good, none)
	f.submit(normalise.Change{Key: aged("old", 0).Key})
	f.told(source("/3"), good, none)
	if got := f.get(source("/1")); got != nil {
		t.Errorf("keys of an object that is gone: %v", got)
	}
}

// A namespace whose servers hang does not keep others from fetching.
func TestAHangingNamespaceDoesNotStopOthers(t *testing.T) {
	hanging, well := newSite(t, httptest.NewServer), newSite(t, httptest.NewServer)
	f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}})
	hanging.set(slow("", nil))
	keys := keySet(t, "a")
	well.serve(keys)
	var changes []normalise.Change
	for i := range 50 {
		changes = append(changes, request("attacker", fmt.Sprint("r", i), rule(fmt.Sprint(hanging.URL, "/", i))))
	}
	f.submit(changes...)
	testkit.Eventually(t, 5*time.Second, func() error {
		if hanging.requests.Load() < 4 {
			return errors.New("not asked yet")
		}
		return nil
	})
	f.submit(request("shop", "r", rule(well.URL)))
	f.told(contract.KeySource{URI: well.URL}, canonical(t, keys), none)
	if n := hanging.requests.Load(); n != 4 {
		t.Errorf("the attacker has %d fetches at once, want 4", n)
	}
}

// Replicas that were given the objects in another order tell the same.
func TestStatesDoNotDependOnTheOrderOfObjects(t *testing.T) {
	s := newSite(t, httptest.NewServer)
	s.serve(keySet(t, "b", "a"))
	forward := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}, limit: 3})
	backward := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}, limit: 3})
	const n = 8
	for i := range n {
		forward.submit(request("shop", fmt.Sprint("r", i), rule(fmt.Sprint(s.URL, "/", i))))
		backward.submit(request("shop", fmt.Sprint("r", n-1-i), rule(fmt.Sprint(s.URL, "/", n-1-i))))
	}
	for i := range n {
		source := contract.KeySource{URI: fmt.Sprint(s.URL, "/", i)}
		testkit.Eventually(t, 5*time.Second, func() error {
			a, b := forward.get(source), backward.get(source)
			if a == nil || a.Problem == configv1.JwksProblem_JWKS_PROBLEM_PENDING || a.String() != b.String() || (a.Keys == nil) != (i >= 3) {
				return fmt.Errorf("%s: %v and %v", source, a, b)
			}
			return nil
		})
	}
}
