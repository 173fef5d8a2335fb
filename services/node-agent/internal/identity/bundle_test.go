package identity

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/protobuf/types/known/anypb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/node-agent/internal/config"
)

// published is a SPIFFE bundle with the roots of a CA.
func published(t testing.TB, ca *testkit.CA, hint time.Duration) []byte {
	t.Helper()
	b := spiffebundle.FromX509Authorities(ca.TrustDomain, []*x509.Certificate{ca.Cert})
	b.SetRefreshHint(hint)
	raw, err := b.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A bundle at a URL is fetched, kept while it is broken or away, and replaced by the next one at the time that it says.
func TestBundleAtAURL(t *testing.T) {
	own, foreign, next := testkit.PKI(t), testkit.NewCA(t, "other.example", time.Now()), testkit.NewCA(t, "other.example", time.Now())
	var answer atomic.Pointer[[]byte]
	serve := func(b []byte) { answer.Store(&b) }
	serve(published(t, foreign, 10*time.Minute))
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(*answer.Load()) }))
	t.Cleanup(server.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(server.Certificate())
	clock := testkit.NewClock(time.Now())
	b, err := newBundle(bundleConfig{
		Source: own.NewSVID("shop", "web"), TrustDomains: []string{own.TrustDomain.Name()}, Anchors: []config.Anchor{{URL: server.URL}},
		Fetch: fetch.New(fetch.Config{Roots: trusted, Addresses: fetch.Addresses{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}),
		Log:   testkit.Logger(t), Clock: clock, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, b.Run)
	has := func(ca *testkit.CA) error {
		m, err := b.Current()
		if err == nil && (!bytes.Contains(m.RootsPEM, bytes.TrimSpace(ca.RootPEM)) || !bytes.Contains(m.RootsPEM, bytes.TrimSpace(own.RootPEM))) {
			err = errors.New("the roots are not all there")
		}
		return err
	}
	testkit.Eventually(t, testkit.Patience, func() error { return has(foreign) })
	for _, broken := range []string{"no JSON", "{}", `{"keys": []}`} {
		serve([]byte(broken))
		clock.WaitFor(t, 1)
		clock.Advance(12 * time.Minute)
		if err := has(foreign); err != nil {
			t.Errorf("after %q: %v", broken, err)
		}
	}
	serve(published(t, next, 0))
	testkit.Eventually(t, testkit.Patience, func() error {
		clock.Advance(12 * time.Minute)
		return has(next)
	})
	if err := has(foreign); err == nil {
		t.Error("a root that is not published any more stays")
	}
}

// The agent's own fetcher goes to no address of the machine itself.
func TestBundleAtALocalAddressIsNotFetched(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("asked") }))
	t.Cleanup(server.Close)
	b := &Bundle{cfg: bundleConfig{Fetch: fetch.New(fetch.Config{})}}
	if _, _, err := b.fetch(t.Context(), server.URL); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("got %v", err)
	}
}

func TestRefreshHintIsBounded(t *testing.T) {
	ca := testkit.PKI(t)
	for hint, want := range map[time.Duration]time.Duration{time.Second: minRefresh, time.Minute: time.Minute, 48 * time.Hour: maxRefresh} {
		if _, got, err := parseBundle(published(t, ca, hint)); err != nil || got != want {
			t.Errorf("%s: %s %v, want %s", hint, got, err, want)
		}
	}
	b := spiffebundle.FromX509Authorities(spiffeid.RequireTrustDomainFromString("a"), []*x509.Certificate{ca.Cert})
	raw, err := b.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, got, err := parseBundle(raw); err != nil || got != defaultRefresh {
		t.Errorf("without a hint: %s %v", got, err)
	}
}

func TestMalformedRootsOfAControlPlaneChangeNothing(t *testing.T) {
	own, first := testkit.PKI(t), testkit.PKI(t)
	b, err := newBundle(bundleConfig{Source: own.NewSVID("shop", "web"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Push(Pushed{Roots: []string{string(first.RootPEM)}}); err != nil {
		t.Fatal(err)
	}
	leaf, err := own.NewSVID("a", "b").Current()
	if err != nil {
		t.Fatal(err)
	}
	many := make([]string, maxExtraRoots+1)
	for i := range many {
		many[i] = string(first.RootPEM)
	}
	for name, texts := range map[string][]string{
		"no PEM": {"x"}, "no authority": {string(leaf.CertPEM)}, "too many": many, "empty": {""},
		"too large": {string(first.RootPEM) + strings.Repeat(" ", maxExtraBytes)},
	} {
		if err := b.Push(Pushed{Roots: texts}); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if m, err := b.Current(); err != nil || !bytes.Contains(m.RootsPEM, bytes.TrimSpace(first.RootPEM)) {
			t.Errorf("%s: the roots before are gone: %v", name, err)
		}
	}
	packed, err := anypb.New(&meshv1alpha1.ProxyConfig{CaCertificatesPem: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.TakeProxyConfig(packed); err == nil || !strings.Contains(err.Error(), "caCertificatesPem") {
		t.Errorf("a ProxyConfig with malformed roots: %v", err)
	}
	if packed, err = anypb.New(&meshv1alpha1.ProxyConfig{}); err != nil {
		t.Fatal(err)
	}
	if err := b.TakeProxyConfig(packed); err != nil {
		t.Fatal(err)
	}
	if m, _ := b.Current(); bytes.Contains(m.RootsPEM, bytes.TrimSpace(first.RootPEM)) {
		t.Error("roots that were taken back stay")
	}
}

// The mesh's own roots, which a ProxyConfig has for Istio's agents, are left out: they would vouch for other trust
// domains, and outlast a rotation.
func TestTheMeshsOwnRootsInAProxyConfigAreLeftOut(t *testing.T) {
	own, partner, anyones := testkit.PKI(t), testkit.PKI(t), testkit.PKI(t)
	source := own.NewSVID("shop", "web")
	b, err := newBundle(bundleConfig{Source: source, TrustDomains: []string{"cluster.local"}, Log: testkit.Logger(t)})
	testkit.NoError(t, err)
	take := func(count string) error {
		t.Helper()
		packed, err := anypb.New(&meshv1alpha1.ProxyConfig{
			CaCertificatesPem: []string{string(anyones.RootPEM), string(own.RootPEM) + "# trust bundle, generation 2 of epoch 1\n"},
			ProxyMetadata: map[string]string{contract.OwnRootsMetadata: count,
				contract.RootsMetadata: fmt.Sprintf(`{"caCertificates":[{"pem":%q,"trustDomains":["partner.example"]}]}`, partner.RootPEM)},
		})
		testkit.NoError(t, err)
		return b.TakeProxyConfig(packed)
	}
	testkit.NoError(t, take("1"))
	m, err := b.Current()
	testkit.NoError(t, err)
	b.mu.Lock()
	domains := b.byDomain(m)
	b.mu.Unlock()
	for _, d := range domains {
		roots, err := tlsconf.ParseCertificates(d.rootsPEM)
		testkit.NoError(t, err)
		vouches := slices.ContainsFunc(roots, own.Cert.Equal)
		if want := d.name == "cluster.local"; vouches != want || !slices.ContainsFunc(roots, anyones.Cert.Equal) || len(roots) != 2 {
			t.Errorf("%s: %d roots, the mesh's own among them: %v", d.name, len(roots), vouches)
		}
	}
	for _, wrong := range []string{"3", "-1", "x", ""} {
		if err := take(wrong); err == nil || !strings.Contains(err.Error(), contract.OwnRootsMetadata) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// Roots in proxyMetadata are for their trust domains alone, and a URL there is fetched until it is taken back.
func TestPushedRootsForTrustDomainsAndAtURLs(t *testing.T) {
	own, partner, atURL := testkit.PKI(t), testkit.PKI(t), testkit.NewCA(t, "other.example", time.Now())
	asked := make(chan struct{}, 100)
	raw := published(t, atURL, 0)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		_, _ = w.Write(raw)
	}))
	t.Cleanup(server.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(server.Certificate())
	b, err := newBundle(bundleConfig{
		Source: own.NewSVID("shop", "web"), TrustDomains: []string{"cluster.local"}, Log: testkit.Logger(t), Clock: testkit.NewClock(time.Now()),
		Fetch: fetch.New(fetch.Config{Roots: trusted, Addresses: fetch.Addresses{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, b.Run)
	take := func(more string) error {
		packed, err := anypb.New(&meshv1alpha1.ProxyConfig{ProxyMetadata: map[string]string{contract.RootsMetadata: more}})
		if err != nil {
			t.Fatal(err)
		}
		return b.TakeProxyConfig(packed)
	}
	if err := take(fmt.Sprintf(`{"trustDomainAliases":["old.example"],"caCertificates":[{"pem":%q,"trustDomains":["partner.example"]},`+
		`{"spiffeBundleUrl":%q,"trustDomains":["other.example"]}]}`, partner.RootPEM, server.URL)); err != nil {
		t.Fatal(err)
	}
	domains := func() map[string]string {
		m, err := own.NewSVID("shop", "web").Current()
		if err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		out := map[string]string{}
		for _, d := range b.byDomain(m) {
			out[d.name] = string(d.rootsPEM)
		}
		return out
	}
	text := func(ca *testkit.CA) string { return string(bytes.TrimSpace(ca.RootPEM)) + "\n" }
	want := map[string]string{
		"cluster.local": text(own), "old.example": text(own), "partner.example": text(partner), "other.example": text(atURL),
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		if got := domains(); !maps.Equal(got, want) {
			return fmt.Errorf("roots %v, want %v", got, want)
		}
		return nil
	})
	if m, err := b.Current(); err != nil || bytes.Contains(m.RootsPEM, bytes.TrimSpace(partner.RootPEM)) {
		t.Errorf("a root for one trust domain is one for all: %v", err)
	}
	for _, malformed := range []string{"x", `{"caCertificates":[{"pem":"x"}]}`, `{"caCertificates":[{"spiffeBundleUrl":"http://b"}]}`} {
		if err := take(malformed); err == nil || !strings.Contains(err.Error(), contract.RootsMetadata) {
			t.Errorf("%s: %v", malformed, err)
		}
		if got := domains(); !maps.Equal(got, want) {
			t.Errorf("after %s: roots %v", malformed, got)
		}
	}
	if err := take("{}"); err != nil {
		t.Fatal(err)
	}
	if got := domains(); len(got) != 1 || got["cluster.local"] != text(own) {
		t.Errorf("what was taken back stays: %v", got)
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.fetched) > 0 {
			return errors.New("the bundle that nobody names stays")
		}
		return nil
	})
	if n := len(asked); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func FuzzBundle(f *testing.F) {
	f.Add(published(f, testkit.PKI(f), time.Minute))
	f.Add([]byte(`{"keys":[{"use":"x509-svid","kty":"EC","x5c":["AA=="]}],"spiffe_refresh_hint":-1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		text, next, err := parseBundle(raw)
		if err != nil {
			return
		}
		if next < minRefresh || next > maxRefresh {
			t.Errorf("fetched again after %s", next)
		}
		if _, err := joinRoots([]string{text}); err != nil && !strings.Contains(err.Error(), "authority") &&
			!strings.Contains(err.Error(), "bytes") {
			t.Error(fmt.Errorf("what was read cannot be used: %w", err))
		}
	})
}
