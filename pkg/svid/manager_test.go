package svid_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/rpc/rpctest"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

const patience = testkit.Patience

// caServer is a small ca behind Istio's API. Tests change its fields under mu.
type caServer struct {
	securityv1alpha1.UnimplementedIstioCertificateServiceServer
	mu      sync.Mutex
	ca      *testkit.CA
	clock   *testkit.Clock
	ttl     time.Duration
	extra   [][]byte                      // PEM added to the chain
	sign    func(spiffeid.ID) spiffeid.ID // identity to put into the answer
	methods []string                      // how callers authenticated
	tls     *testkit.Static
}

func (s *caServer) CreateCertificate(ctx context.Context, r *securityv1alpha1.IstioCertificateRequest) (
	*securityv1alpha1.IstioCertificateResponse, error) {
	p, _ := auth.PeerFrom(ctx)
	block, _ := pem.Decode([]byte(r.GetCsr()))
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, err
	}
	if len(csr.URIs) != 1 || csr.URIs[0].String() != p.ID.String() || len(csr.DNSNames) != 0 {
		return nil, fmt.Errorf("CSR asks for %v %v, caller is %s", csr.URIs, csr.DNSNames, p.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.methods = append(s.methods, p.Method)
	id := p.ID
	if s.sign != nil {
		id = s.sign(id)
	}
	leaf := s.ca.Sign(id, csr.PublicKey, testkit.Valid(time.Now().Add(-time.Minute), s.clock.Now().Add(s.ttl)))
	chain := []string{string(leaf)}
	for _, e := range s.extra {
		chain = append(chain, string(e))
	}
	return &securityv1alpha1.IstioCertificateResponse{CertChain: append(chain, string(s.ca.RootPEM))}, nil
}

func (s *caServer) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *caServer) calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.methods...)
}

type fixture struct {
	ca     *testkit.CA
	issuer *testkit.Issuer
	clock  *testkit.Clock
	server *caServer
	cfg    svid.Config
	reg    *prometheus.Registry
}

// newFixture prepares a manager's configuration and a CA that does not listen yet.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{ca: testkit.PKI(t), issuer: testkit.NewIssuer(t), clock: testkit.NewClock(time.Now()), reg: prometheus.NewRegistry()}
	w.server = &caServer{ca: w.ca, clock: w.clock, ttl: 24 * time.Hour, tls: w.ca.NewSVID("istio-system", "ca")}
	w.cfg = svid.Config{
		CAIDs:      []spiffeid.ID{w.ca.ID("istio-system", "ca")},
		TokenFile:  w.issuer.TokenFile("bookinfo", "reviews", "istio-ca"),
		RootFile:   w.ca.WriteRoot(t.TempDir()),
		Identity:   w.ca.ID("bookinfo", "reviews"),
		TTL:        24 * time.Hour,
		Clock:      w.clock,
		Log:        testkit.Logger(t),
		Registerer: w.reg,
		Rand:       func() float64 { return 0.5 },
	}
	return w
}

func (w *fixture) serve(t *testing.T, lis net.Listener) {
	t.Helper()
	j, err := auth.NewJWT(auth.JWTConfig{
		JWKSFile: w.issuer.JWKSFile, Issuer: w.issuer.Name, Audiences: []string{"istio-ca"}, TrustDomain: w.ca.TrustDomain,
	})
	if err != nil {
		t.Fatal(err)
	}
	rpctest.Serve(t, lis, rpc.ServerConfig{
		Service: "ca", TLS: tlsconf.Server(w.server.tls, tls.VerifyClientCertIfGiven), Authenticator: auth.FirstOf(auth.MTLS(), j),
		Policy: auth.Policy{"/istio.v1.auth.IstioCertificateService/*": auth.AnyIdentity()},
	}, func(s *grpc.Server) { securityv1alpha1.RegisterIstioCertificateServiceServer(s, w.server) })
}

// start runs the ca and a manager.
func (w *fixture) start(t *testing.T) *svid.Manager {
	t.Helper()
	lis := testkit.LoopbackListener(t)
	w.cfg.CAAddress = lis.Addr().String()
	w.serve(t, lis)
	return w.run(t)
}

func (w *fixture) run(t *testing.T) *svid.Manager {
	t.Helper()
	m, err := svid.New(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return m
}

func ready(t *testing.T, m *svid.Manager) *tlsconf.Material {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := m.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return current(t, m)
}

func current(t *testing.T, s tlsconf.Source) *tlsconf.Material {
	t.Helper()
	m, err := s.Current()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// renewedFrom waits for another certificate than old.
func renewedFrom(t *testing.T, m *svid.Manager, old *tlsconf.Material) *tlsconf.Material {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if current(t, m).Certificate.Leaf.Equal(old.Certificate.Leaf) {
			return errors.New("not renewed")
		}
		return nil
	})
	return current(t, m)
}

func TestFirstCertificateByTokenThenRenewalByCertificate(t *testing.T) {
	w := newFixture(t)
	m := w.start(t)
	first := ready(t, m)
	if id, err := first.ID(); err != nil || id != w.cfg.Identity {
		t.Errorf("identity %v %v", id, err)
	}
	if len(first.Certificate.Certificate) != 1 {
		t.Errorf("chain of %d is sent to peers, the root should be left out", len(first.Certificate.Certificate))
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}

	// Just before half of its life the certificate is not renewed, at half it is, with the certificate instead of the
	// token.
	testkit.WriteFile(t, w.cfg.TokenFile, []byte("spoiled"))
	w.advance(t, 12*time.Hour-time.Minute)
	if n := len(w.server.calls()); n != 1 {
		t.Fatalf("%d requests before half life", n)
	}
	w.advance(t, 2*time.Minute)
	second := renewedFrom(t, m, first)
	if got := w.server.calls(); len(got) != 2 || got[0] != auth.MethodJWT || got[1] != auth.MethodMTLS {
		t.Errorf("callers authenticated by %v, want jwt then mtls", got)
	}
	want := fmt.Sprintf(`
		# HELP fairlead_svid_expiry_timestamp_seconds When the program's own certificate expires, in Unix time; 0 until one has been issued.
		# TYPE fairlead_svid_expiry_timestamp_seconds gauge
		fairlead_svid_expiry_timestamp_seconds %g
		# HELP fairlead_svid_renewal_failures_total Attempts to obtain a certificate that failed.
		# TYPE fairlead_svid_renewal_failures_total counter
		fairlead_svid_renewal_failures_total 0
		# HELP fairlead_svid_renewals_total Certificates obtained from the CA, the first one included.
		# TYPE fairlead_svid_renewals_total counter
		fairlead_svid_renewals_total 2
	`, float64(second.NotAfter.Unix()))
	testkit.Eventually(t, patience, func() error {
		return testutil.GatherAndCompare(w.reg, strings.NewReader(want), "fairlead_svid_expiry_timestamp_seconds",
			"fairlead_svid_renewal_failures_total", "fairlead_svid_renewals_total")
	})
}

// advance moves the clock in the manager's own steps, each after its two timers run again, its own and the files'.
func (w *fixture) advance(t *testing.T, d time.Duration) {
	t.Helper()
	for d > 0 {
		w.clock.WaitFor(t, 2)
		step := min(d, 5*time.Minute)
		w.clock.Advance(step)
		d -= step
	}
	w.clock.WaitFor(t, 2)
}

func TestRenewIsImmediate(t *testing.T) {
	w := newFixture(t)
	m := w.start(t)
	first := ready(t, m)
	changed := m.Changed()
	m.Renew()
	<-changed
	renewedFrom(t, m, first)
}

func TestRenewalFallsBackToTheToken(t *testing.T) {
	w := newFixture(t)
	m := w.start(t)
	first := ready(t, m)
	// The ca does not trust certificates of its old root any more; the root file has both roots.
	next := testkit.PKI(t)
	w.server.with(func() { w.server.ca = next })
	w.server.tls.Set(current(t, next.NewSVID("istio-system", "ca")))
	changed := m.Changed()
	testkit.WriteFile(t, w.cfg.RootFile, append(append([]byte{}, w.ca.RootPEM...), next.RootPEM...))
	<-changed
	m.Renew()
	renewedFrom(t, m, first)
	if got := w.server.calls(); got[len(got)-1] != auth.MethodJWT {
		t.Errorf("callers authenticated by %v, want the last by jwt", got)
	}
}

func TestStartsBeforeTheCAAndWaits(t *testing.T) {
	w := newFixture(t)
	address := testkit.FreeAddress(t)
	w.cfg.CAAddress = address.String()
	m := w.run(t)
	ctx, cancel := context.WithCancel(t.Context())
	testkit.Eventually(t, patience, func() error {
		if err := m.Check(); err == nil || !strings.Contains(err.Error(), w.cfg.CAAddress) {
			return fmt.Errorf("Check gives %w, want the CA's address", err)
		}
		return nil
	})
	cancel()
	if err := m.WaitReady(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, tlsconf.ErrNoCertificate) ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("WaitReady gives %v, want the cause", err)
	}
	if current(t, m).Certificate != nil {
		t.Fatal("a certificate from nowhere")
	}
	w.serve(t, testkit.Listen(t, address))
	stop := w.keepAdvancing(t, time.Second)
	defer stop()
	ready(t, m)
}

// keepAdvancing advances the clock by a step each time the manager sleeps, until stop is called.
func (w *fixture) keepAdvancing(t *testing.T, step time.Duration) (stop func()) {
	t.Helper()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				w.clock.Advance(step)
			}
		}
	}()
	return func() { close(quit); <-done }
}

func TestKeepsTheCertificateWhileTheCAFails(t *testing.T) {
	w := newFixture(t)
	m := w.start(t)
	first := ready(t, m)
	w.server.with(func() { w.server.sign = func(spiffeid.ID) spiffeid.ID { return w.ca.ID("bookinfo", "ratings") } })
	m.Renew()
	testkit.Eventually(t, patience, func() error {
		if n := len(w.server.calls()); n < 2 {
			return fmt.Errorf("%d requests", n)
		}
		return testutil.GatherAndCompare(w.reg, strings.NewReader(`
			# HELP fairlead_svid_renewal_failures_total Attempts to obtain a certificate that failed.
			# TYPE fairlead_svid_renewal_failures_total counter
			fairlead_svid_renewal_failures_total 1
		`), "fairlead_svid_renewal_failures_total")
	})
	if !current(t, m).Certificate.Leaf.Equal(first.Certificate.Leaf) {
		t.Error("a certificate for another identity was adopted")
	}
	if err := m.Check(); err != nil {
		t.Errorf("not ready although the certificate is valid: %v", err)
	}
	w.server.with(func() { w.server.sign = nil })
	stop := w.keepAdvancing(t, time.Second)
	defer stop()
	renewedFrom(t, m, first)
}

func TestCheckAfterExpiry(t *testing.T) {
	w := newFixture(t)
	m := w.start(t)
	ready(t, m)
	w.server.with(func() { w.server.sign = func(spiffeid.ID) spiffeid.ID { return w.ca.ID("a", "b") } })
	w.clock.Advance(25 * time.Hour)
	if err := m.Check(); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("got %v", err)
	}
}

// Roots in an answer are not adopted.
func TestRootsOfTheAnswerAreNotAdopted(t *testing.T) {
	w := newFixture(t)
	evil := testkit.PKI(t)
	w.server.extra = [][]byte{evil.RootPEM}
	m := w.start(t)
	got := ready(t, m)
	if string(got.RootsPEM) != string(w.ca.RootPEM) {
		t.Error("roots are not those of the file")
	}
	leaf := current(t, evil.NewSVID("istio-system", "ca")).Certificate.Leaf
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: got.Roots}); err == nil {
		t.Error("the foreign root is trusted")
	}
	if len(got.Certificate.Certificate) != 1 {
		t.Errorf("chain of %d is sent to peers", len(got.Certificate.Certificate))
	}
}

func TestImpostorsAreNotAsked(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *fixture){
		"CA with another root":     func(t *testing.T, w *fixture) { w.server.tls = testkit.PKI(t).NewSVID("istio-system", "ca") },
		"CA with another identity": func(_ *testing.T, w *fixture) { w.server.tls = w.ca.NewSVID("bookinfo", "details") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			change(t, w)
			m := w.start(t)
			testkit.Eventually(t, patience, func() error {
				if err := m.Check(); err == nil || !strings.Contains(err.Error(), "with the token") {
					return fmt.Errorf("no attempt yet: %w", err)
				}
				return nil
			})
			if n := len(w.server.calls()); n != 0 {
				t.Errorf("%d requests, with tokens, reached an impostor", n)
			}
		})
	}
}

func TestRootChangeReachesConsumersAndRenews(t *testing.T) {
	w := newFixture(t)
	m := w.start(t)
	first := ready(t, m)
	next := testkit.PKI(t)

	// With both roots in the file, Current has them, and the certificate stays.
	both := append(append([]byte{}, w.ca.RootPEM...), next.RootPEM...)
	changed := m.Changed()
	testkit.WriteFile(t, w.cfg.RootFile, both)
	<-changed
	got := current(t, m)
	if string(got.RootsPEM) != string(both) || !got.Certificate.Leaf.Equal(first.Certificate.Leaf) {
		t.Error("want both roots and the same certificate")
	}
	// With only the new root, the certificate does not verify any more and is replaced at once.
	w.server.with(func() { w.server.ca = next })
	w.server.tls.Set(current(t, next.NewSVID("istio-system", "ca")))
	testkit.WriteFile(t, w.cfg.RootFile, next.RootPEM)
	second := renewedFrom(t, m, first)
	if _, err := second.Certificate.Leaf.Verify(x509.VerifyOptions{Roots: second.Roots}); err != nil {
		t.Error(err)
	}
}

// A source in place of the root file is what verifies, and its changes count as those of the file do.
func TestRootsOfASource(t *testing.T) {
	w := newFixture(t)
	next := testkit.PKI(t)
	roots := w.ca.RootsOnly()
	w.cfg.Roots = roots
	w.cfg.RootFile = ""
	m := w.start(t)
	first := ready(t, m)
	w.server.with(func() { w.server.ca = next })
	w.server.tls.Set(current(t, next.NewSVID("istio-system", "ca")))
	roots.Set(current(t, next.RootsOnly()))
	if second := renewedFrom(t, m, first); string(second.RootsPEM) != string(next.RootPEM) {
		t.Error("want the roots of the source")
	}
}

func TestRootFileMayComeLater(t *testing.T) {
	w := newFixture(t)
	later := w.cfg.RootFile + ".later"
	w.cfg.RootFile = later
	m := w.start(t)
	testkit.Eventually(t, patience, func() error {
		if err := m.Check(); err == nil || !strings.Contains(err.Error(), later) {
			return fmt.Errorf("Check gives %w, want the file", err)
		}
		return nil
	})
	testkit.WriteFile(t, later, w.ca.RootPEM)
	stop := w.keepAdvancing(t, 100*time.Millisecond)
	defer stop()
	ready(t, m)
}

func TestConfigIsChecked(t *testing.T) {
	w := newFixture(t)
	w.cfg.CAAddress = "127.0.0.1:1"
	for want, change := range map[string]func(*svid.Config){
		"CA address":           func(c *svid.Config) { c.CAAddress = "" },
		"CA's SPIFFE id":       func(c *svid.Config) { c.CAIDs = nil },
		"root certificate":     func(c *svid.Config) { c.RootFile = "" },
		"identity is required": func(c *svid.Config) { c.Identity = spiffeid.ID{} },
		"token file":           func(c *svid.Config) { c.TokenFile = "" },
		"not in trust domain":  func(c *svid.Config) { c.TrustDomain = spiffeid.RequireTrustDomainFromString("other.example") },
		"TTL 0s is not":        func(c *svid.Config) { c.TTL = 0 },
		"TTL -1s is not":       func(c *svid.Config) { c.TTL = -time.Second },
	} {
		cfg := w.cfg
		change(&cfg)
		if _, err := svid.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
