package jwks_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/durationpb"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/fetch"
	keysets "fairlead.dev/pkg/jwks"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/jwks"
	"fairlead.dev/services/config-watcher/internal/normalise"
)

func TestKeysAreFetchedAndRotate(t *testing.T) {
	s := newSite(t, httptest.NewServer)
	f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}})
	source := contract.KeySource{URI: s.URL + "/keys"}
	first, second := keySet(t, "a"), keySet(t, "b", "c")
	s.serve(first)
	f.submit(request("shop", "r", &security.JWTRule{Issuer: "i", JwksUri: source.URI}))
	f.told(source, canonical(t, first), none)
	if f.order() != "r" {
		t.Errorf("passed on: %q", f.order())
	}
	at := f.state(jwks.StateFresh, 0)
	if d := at.Next.Sub(start); d <= 0 || d > 21*time.Minute {
		t.Errorf("is fetched again after %s", d)
	}
	s.serve(second)
	f.advanceTo(*at.Next)
	f.told(source, canonical(t, second), none)

	// In another order the same keys are no change.
	var set struct{ Keys []json.RawMessage }
	testkit.NoError(t, json.Unmarshal([]byte(second), &set))
	s.serve(fmt.Sprintf(`{"keys":[%s,%s]}`, set.Keys[1], set.Keys[0]))
	told, asked := f.count(), s.requests.Load()
	f.advanceTo(*f.state(jwks.StateFresh, 0).Next)
	testkit.Eventually(t, 5*time.Second, func() error {
		if s.requests.Load() == asked {
			return fmt.Errorf("not fetched again")
		}
		return nil
	})
	f.state(jwks.StateFresh, 0)
	if f.count() != told {
		t.Error("another order was told")
	}
	f.submit(normalise.Change{Key: request("shop", "r").Key})
	if f.get(source) != nil || len(f.States()) != 0 {
		t.Errorf("keys that nobody wants are there: %v", f.States())
	}
}

func TestIssuersAreDiscovered(t *testing.T) {
	s := newSite(t, httptest.NewServer)
	f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}})
	keys := keySet(t, "a")
	s.set(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/realm/.well-known/openid-configuration":
			_, _ = fmt.Fprintf(w, `{"issuer":"x","jwks_uri":"%s/certs"}`, s.URL)
		case "/certs":
			_, _ = w.Write([]byte(keys))
		case "/empty/.well-known/openid-configuration":
			_, _ = w.Write([]byte(`{}`))
		default:
			http.NotFound(w, r)
		}
	})
	for issuer, problem := range map[string]configv1.JwksProblem{
		"/realm": none, "/realm/": none, "/empty": configv1.JwksProblem_JWKS_PROBLEM_UNUSABLE,
		"/other": configv1.JwksProblem_JWKS_PROBLEM_UNREACHABLE,
	} {
		source := contract.KeySource{Issuer: s.URL + issuer}
		f.submit(request("shop", "r", &security.JWTRule{Issuer: source.Issuer}))
		want := ""
		if problem == none {
			want = canonical(t, keys)
		}
		f.told(source, want, problem)
	}
	f.submit(request("shop", "r", &security.JWTRule{Issuer: "joe@example.com"}))
	f.told(contract.KeySource{Issuer: "joe@example.com"}, "", configv1.JwksProblem_JWKS_PROBLEM_FORBIDDEN)
}

func TestServersAreVerifiedByFurtherRoots(t *testing.T) {
	s := newSite(t, httptest.NewTLSServer)
	keys := keySet(t, "a")
	s.serve(keys)
	source := contract.KeySource{URI: s.URL}
	rule := request("shop", "r", &security.JWTRule{Issuer: "i", JwksUri: s.URL})
	without := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}})
	without.submit(rule)
	without.told(source, "", configv1.JwksProblem_JWKS_PROBLEM_UNREACHABLE)

	// The file is followed: at first it has another root.
	roots := filepath.Join(t.TempDir(), "roots.pem")
	testkit.WriteFile(t, roots, testkit.CertPEM(testkit.PKI(t).Cert))
	with := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}, roots: roots})
	with.submit(rule)
	with.told(source, "", configv1.JwksProblem_JWKS_PROBLEM_UNREACHABLE)
	testkit.WriteFile(t, roots, testkit.CertPEM(s.Certificate()))
	with.clock.Advance(time.Minute)
	with.told(source, canonical(t, keys), none)
	for _, bad := range []string{"", "no PEM"} {
		testkit.WriteFile(t, roots, []byte(bad))
		if _, err := jwks.NewFetcher(jwks.FetcherConfig{RootsFile: roots, Clock: with.clock, Log: testkit.Logger(t)}); err == nil {
			t.Errorf("roots %q are accepted", bad)
		}
	}
}

func TestWhatMustNotBeFetchedIsNot(t *testing.T) {
	inner := newSite(t, httptest.NewServer)
	inner.serve(keySet(t, "a"))
	port := inner.URL[strings.LastIndex(inner.URL, ":"):]
	// Only 127.0.0.2 is allowed; the inner service is at 127.0.0.1.
	lis := testkit.Listen(t, netip.MustParseAddrPort("127.0.0.2:0"))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, inner.URL, http.StatusFound)
	}))
	_ = server.Listener.Close()
	server.Listener = lis
	server.Start()
	t.Cleanup(server.Close)
	f := newFixture(t, options{addresses: fetch.Addresses{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}}})
	for name, uri := range map[string]string{
		"loopback": inner.URL, "a name of loopback": "http://localhost" + port, "metadata": "http://169.254.169.254/keys",
		"a redirect to loopback": server.URL, "a user": "https://me:you@example.com/", "no address": "https://",
	} {
		f.submit(request("shop", "r", &security.JWTRule{Issuer: "i", JwksUri: uri}))
		f.told(contract.KeySource{URI: uri}, "", configv1.JwksProblem_JWKS_PROBLEM_FORBIDDEN)
		problems, missing := f.Problems(request("shop", "r").Key)
		if !missing || len(problems) != 1 || !strings.Contains(problems[0], "--jwks-allow-addresses") {
			t.Errorf("%s: the owner is told %q", name, problems)
		}
	}
	if n := inner.requests.Load(); n > 0 {
		t.Errorf("the inner service was asked %d times", n)
	}
}

func TestBadAnswersLeaveTheLastGoodKeys(t *testing.T) {
	s := newSite(t, httptest.NewServer)
	source := contract.KeySource{URI: s.URL}
	good := keySet(t, "a")
	for name, bad := range map[string]struct {
		h       http.HandlerFunc
		problem configv1.JwksProblem
	}{
		"an error": {
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, good, http.StatusInternalServerError) },
			configv1.JwksProblem_JWKS_PROBLEM_UNREACHABLE,
		},
		"garbage":       {write("<html>"), configv1.JwksProblem_JWKS_PROBLEM_UNUSABLE},
		"an empty set":  {write(`{"keys":[]}`), configv1.JwksProblem_JWKS_PROBLEM_UNUSABLE},
		"only bad keys": {write(`{"keys":[{"kty":"oct","k":"AA"}]}`), configv1.JwksProblem_JWKS_PROBLEM_UNUSABLE},
		"too large":     {write(good + strings.Repeat(" ", keysets.MaxBytes)), configv1.JwksProblem_JWKS_PROBLEM_UNUSABLE},
		"slow":          {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, configv1.JwksProblem_JWKS_PROBLEM_UNREACHABLE},
	} {
		t.Run(name, func(t *testing.T) {
			rule := request("shop", "r", &security.JWTRule{Issuer: "i", JwksUri: s.URL, Timeout: durationpb.New(300 * time.Millisecond)})
			s.set(bad.h)
			without := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}})
			without.submit(rule)
			without.told(source, "", bad.problem)
			problems, missing := without.Problems(rule.Key)
			if !missing || len(problems) != 1 || strings.Contains(problems[0], "secret words") {
				t.Errorf("without keys the owner is told %v, %q", missing, problems)
			}

			s.serve(good)
			f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}})
			f.submit(rule)
			f.told(source, canonical(t, good), none)
			s.set(bad.h)
			f.advanceTo(*f.state(jwks.StateFresh, 0).Next)
			f.state(jwks.StateStale, 1)
			f.told(source, canonical(t, good), none)
			problems, missing = f.Problems(rule.Key)
			if missing || len(problems) != 1 || !strings.Contains(problems[0], "last good ones count until 2026-05-08") {
				t.Errorf("with last good keys the owner is told %v, %q", missing, problems)
			}
		})
	}
}

func write(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
}

func TestFailuresAreRepeatedLessAndLessOften(t *testing.T) {
	s := newSite(t, httptest.NewServer)
	s.fail()
	f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}})
	f.submit(request("shop", "r", &security.JWTRule{Issuer: "i", JwksUri: s.URL}))
	pauses := []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}
	for i, want := range pauses {
		at := f.state(jwks.StateMissing, i+1)
		if got := at.Next.Sub(f.clock.Now()); got != want*time.Second {
			t.Errorf("after %d failures the pause is %s, want %s", i+1, got, want*time.Second)
		}
		if strings.Contains(at.Error, "secret words") || !strings.Contains(at.Error, "502") {
			t.Errorf("the error is %q", at.Error)
		}
		if n := s.requests.Load(); n != int64(i+1) {
			t.Errorf("%d requests after %d failures", n, i+1)
		}
		f.advanceTo(*at.Next)
	}
	// The clock's last step repeats the last request only if that has failed before.
	f.state(jwks.StateMissing, len(pauses)+1)
	keys := keySet(t, "a")
	s.serve(keys)
	f.clock.Advance(10 * time.Minute)
	f.told(contract.KeySource{URI: s.URL}, canonical(t, keys), none)
	f.state(jwks.StateFresh, 0)
}

func TestCacheControlDecidesWithinBounds(t *testing.T) {
	s := newSite(t, httptest.NewServer)
	keys := keySet(t, "a")
	for name, tc := range map[string]struct {
		headers         []string
		every, shortest time.Duration
	}{
		"nothing said":  {nil, 20 * time.Minute, 0},
		"a short time":  {[]string{"Cache-Control", "public, max-age=1"}, 5 * time.Minute, 0},
		"no-store":      {[]string{"Cache-Control", "no-store, max-age=86400"}, 5 * time.Minute, 0},
		"ten minutes":   {[]string{"Cache-Control", "max-age=700"}, 10 * time.Minute, 0},
		"with its age":  {[]string{"Cache-Control", "max-age=1900", "Age", "1000"}, 10 * time.Minute, 0},
		"a day":         {[]string{"Cache-Control", "max-age=86400"}, time.Hour, 0},
		"no number":     {[]string{"Cache-Control", "max-age=soon"}, 20 * time.Minute, 0},
		"a huge number": {[]string{"Cache-Control", "max-age=99999999999999999999"}, 20 * time.Minute, 0},
		"a lower bound": {[]string{"Cache-Control", "max-age=1"}, 30 * time.Second, 30 * time.Second},
		"a higher one":  {[]string{"Cache-Control", "max-age=310"}, 9 * time.Minute, 9 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			s.serve(keys, tc.headers...)
			// Replicas that fetch at other times are due at the same time.
			var due []time.Time
			for _, later := range []time.Duration{0, 90 * time.Second} {
				f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}, shortest: tc.shortest,
					clock: testkit.NewClock(start.Add(later))})
				f.submit(request("shop", "r", &security.JWTRule{Issuer: "i", JwksUri: s.URL}))
				at := *f.state(jwks.StateFresh, 0).Next
				// A point of time up to 3 s ahead is passed over, and up to 3 s at random come on top.
				if wait, longest := at.Sub(f.clock.Now()), tc.every+6*time.Second; wait <= 0 || wait > longest {
					t.Errorf("is due after %s, want at most %s", wait, longest)
				}
				due = append(due, at)
			}
			if d := due[1].Sub(due[0]); d%tc.every != 0 {
				t.Errorf("a replica that has fetched later is due %s later; the interval is %s", d, tc.every)
			}
		})
	}
}

func TestLastGoodKeysOutliveARestartForSevenDays(t *testing.T) {
	s := newSite(t, httptest.NewServer)
	source, keys, state := contract.KeySource{URI: s.URL}, keySet(t, "a"), t.TempDir()
	rule := request("shop", "r", &security.JWTRule{Issuer: "i", JwksUri: s.URL})
	s.serve(keys)
	clock := testkit.NewClock(start)
	t.Run("before", func(t *testing.T) {
		f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}, state: state, clock: clock})
		f.submit(rule)
		f.told(source, canonical(t, keys), none)
	})
	file := filepath.Join(state, "jwks", source.Name()+".json")
	raw := testkit.Must(os.ReadFile(file))(t)
	s.fail()
	clock.Advance(6 * 24 * time.Hour)
	t.Run("six days later", func(t *testing.T) {
		f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}, state: state, clock: clock})
		f.submit(rule)
		if got := f.get(source); string(got.GetKeys()) != canonical(t, keys) || f.order() == "" || !f.Settled() {
			t.Errorf("the first state has %v", got)
		}
		f.state(jwks.StateStale, 1)
		reg := prometheus.NewRegistry()
		f.Collect(reg)
		testkit.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP fairlead_config_watcher_jwks_oldest_seconds Age of the oldest keys that are in use.
# TYPE fairlead_config_watcher_jwks_oldest_seconds gauge
fairlead_config_watcher_jwks_oldest_seconds 518400
# HELP fairlead_config_watcher_jwks_fetches_total Attempts to fetch keys.
# TYPE fairlead_config_watcher_jwks_fetches_total counter
fairlead_config_watcher_jwks_fetches_total{result="forbidden"} 0
fairlead_config_watcher_jwks_fetches_total{result="ok"} 0
fairlead_config_watcher_jwks_fetches_total{result="unreachable"} 1
fairlead_config_watcher_jwks_fetches_total{result="unusable"} 0
`), "fairlead_config_watcher_jwks_oldest_seconds", "fairlead_config_watcher_jwks_fetches_total"))
		// Seven days after they were fetched they do not count any more.
		f.clock.Advance(24*time.Hour - time.Minute)
		testkit.Eventually(t, 5*time.Second, func() error {
			if states := f.States(); states[0].Failures < 2 {
				return fmt.Errorf("%+v", states)
			}
			return nil
		})
		f.told(source, canonical(t, keys), none)
		f.clock.Advance(time.Minute)
		f.told(source, "", configv1.JwksProblem_JWKS_PROBLEM_EXPIRED)
	})
	t.Run("after seven days", func(t *testing.T) {
		f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}, state: state, clock: clock})
		f.submit(rule)
		f.told(source, "", configv1.JwksProblem_JWKS_PROBLEM_UNREACHABLE)
	})
	for name, content := range map[string]string{
		"broken":            "{",
		"of another source": strings.Replace(string(raw), s.URL, "http://other", 1),
		"without good keys": `{"uri":"` + s.URL + `","fetched":"` + clock.Now().Format(time.RFC3339) + `","keys":{"keys":[]}}`,
		"of the future":     strings.Replace(string(raw), "2026-05-01", "2027-05-01", 1),
	} {
		t.Run("a file "+name, func(t *testing.T) {
			testkit.WriteFile(t, file, []byte(content))
			f := newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}, state: state, clock: clock})
			f.submit(rule)
			f.told(source, "", configv1.JwksProblem_JWKS_PROBLEM_UNREACHABLE)
		})
	}
	t.Run("nobody wants them", func(t *testing.T) {
		testkit.WriteFile(t, file, raw)
		testkit.NoError(t, os.Chtimes(file, start, start))
		newFixture(t, options{addresses: fetch.Addresses{Allow: loopback}, state: state, clock: clock}).clock.WaitFor(t, 1)
	})
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("keys that nobody has wanted for seven days are on disk: %v", err)
	}
}
