package jwks_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/fetch"
	keysets "fairlead.dev/pkg/jwks"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/jwks"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
)

var (
	loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	start    = time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)
)

// keySet is a document with fresh keys of these names.
func keySet(t testing.TB, ids ...string) string {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, id := range ids {
		key := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id})
	}
	return string(testkit.Must(json.Marshal(set))(t))
}

// canonical is the form in which a document is told.
func canonical(t testing.TB, document string) string {
	t.Helper()
	return string(testkit.Must(keysets.Parse([]byte(document)))(t).Keys)
}

// site answers with what a test sets.
type site struct {
	*httptest.Server
	requests atomic.Int64

	mu      sync.Mutex
	handler http.HandlerFunc
}

func newSite(t *testing.T, start func(http.Handler) *httptest.Server) *site {
	t.Helper()
	s := &site{}
	s.Server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		s.mu.Lock()
		h := s.handler
		s.mu.Unlock()
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *site) set(h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = h
}

func (s *site) serve(document string, headers ...string) {
	s.set(func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		_, _ = w.Write([]byte(document))
	})
}

func (s *site) fail() {
	s.set(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "secret words of an inner service", http.StatusBadGateway)
	})
}

// fixture is a table behind which the state of the mesh is kept.
type fixture struct {
	*jwks.Table
	t     *testing.T
	clock *testkit.Clock

	mu   sync.Mutex
	keys map[string]*configv1.Jwks // by the name of the resource
	// passed are the objects that were passed on, in order.
	passed []string
	tells  int
}

type options struct {
	addresses fetch.Addresses
	roots     string
	limit     int
	state     string
	shortest  time.Duration
	clock     *testkit.Clock
}

func newFixture(t *testing.T, o options) *fixture {
	t.Helper()
	if o.clock == nil {
		o.clock = testkit.NewClock(start)
	}
	f := &fixture{t: t, clock: o.clock, keys: map[string]*configv1.Jwks{}}
	log := testkit.Logger(t)
	fetcher, err := jwks.NewFetcher(jwks.FetcherConfig{Addresses: o.addresses, RootsFile: o.roots, Clock: o.clock, Log: log})
	testkit.NoError(t, err)
	cfg := jwks.Config{Fetcher: fetcher, PerNamespace: o.limit, Shortest: o.shortest, Next: f.next, Clock: o.clock, Log: log,
		Random: func() float64 { return 0.5 }}
	if o.state != "" {
		cfg.Saved = lastgood.New(lastgood.Config{Path: o.state, Log: log, Clock: o.clock})
	}
	f.Table = jwks.NewTable(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Run(ctx)
	}()
	stop := func() {
		cancel()
		<-done
		if cfg.Saved != nil {
			testkit.NoError(t, cfg.Saved.Flush())
		}
	}
	t.Cleanup(sync.OnceFunc(stop))
	return f
}

func (f *fixture) next(_ context.Context, changes []normalise.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range changes {
		switch {
		case c.Key.Kind != normalise.KindJwks:
			f.passed = append(f.passed, map[bool]string{true: "-"}[c.Object == nil]+c.Key.Name)
		case c.Object == nil:
			delete(f.keys, c.Key.Name)
		default:
			f.tells++
			f.keys[c.Key.Name] = c.Object.Body.(*configv1.Jwks)
		}
	}
}

func (f *fixture) get(s contract.KeySource) *configv1.Jwks {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keys[s.Name()]
}

// told waits until the mesh is told keys, or a problem, of a source.
func (f *fixture) told(s contract.KeySource, keys string, problem configv1.JwksProblem) {
	f.t.Helper()
	testkit.Eventually(f.t, 5*time.Second, func() error {
		got := f.get(s)
		if got == nil || string(got.Keys) != keys || got.Problem != problem || got.Uri != s.URI || got.Issuer != s.Issuer {
			return fmt.Errorf("%s: %v; want %s %s", s, got, keys, problem)
		}
		return nil
	})
}

func (f *fixture) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tells
}

func (f *fixture) order() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.passed, " ")
}

// state waits for the state of the only source.
func (f *fixture) state(want string, failures int) jwks.State {
	f.t.Helper()
	var out jwks.State
	testkit.Eventually(f.t, 5*time.Second, func() error {
		states := f.States()
		if len(states) != 1 || states[0].State != want || states[0].Failures != failures {
			return fmt.Errorf("%+v; want %s after %d failures", states, want, failures)
		}
		out = states[0]
		return nil
	})
	return out
}

// advanceTo moves the clock to when the only source is due.
func (f *fixture) advanceTo(at time.Time) { f.clock.Advance(at.Sub(f.clock.Now())) }

func request(namespace, name string, rules ...*security.JWTRule) normalise.Change {
	k := object.Key{Group: kinds.GroupSecurity, Kind: "RequestAuthentication", Namespace: namespace, Name: name}
	return normalise.Change{Key: k, Object: &object.Object{Key: k, Body: &security.RequestAuthentication{JwtRules: rules}}}
}

func (f *fixture) submit(changes ...normalise.Change) { f.Submit(f.t.Context(), changes) }

const none = configv1.JwksProblem_JWKS_PROBLEM_UNSPECIFIED
