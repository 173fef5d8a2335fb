package tlsconf_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

// pipe returns the ends of a connection that buffers: in TLS 1.2, both ends may write at once.
func pipe(t *testing.T) (client, server net.Conn) {
	t.Helper()
	lis := testkit.LoopbackListener(t)
	client, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if server, err = lis.Accept(); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// handshake connects and passes one byte each way: in TLS 1.3 a client learns that it is refused when it reads.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	c, s := pipe(t)
	deadline := time.Now().Add(testkit.Patience)
	for _, conn := range []net.Conn{c, s} {
		if err := conn.SetDeadline(deadline); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() {
		defer s.Close()
		conn := tls.Server(s, server)
		_, err := conn.Write([]byte("s"))
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		done <- err
	}()
	conn := tls.Client(c, client)
	_, clientErr = io.ReadFull(conn, make([]byte, 1))
	if clientErr == nil {
		_, clientErr = conn.Write([]byte("c"))
	}
	_ = c.Close()
	return <-done, clientErr
}

func source(t *testing.T, m *tlsconf.Material, err error) *testkit.Static {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return testkit.NewStatic(m)
}

func TestHandshakes(t *testing.T) {
	ca, stranger := testkit.PKI(t), testkit.PKI(t)
	other := testkit.NewCA(t, "other.example", time.Now())
	server, client := ca.NewSVID("istio-system", "ca"), ca.NewSVID("bookinfo", "reviews")
	caID := ca.ID("istio-system", "ca")
	past := testkit.Valid(time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))

	// Both sides trust both roots, so that only the trust domain differs.
	both := append(append([]byte{}, ca.RootPEM...), other.RootPEM...)
	trustBoth := func(s *testkit.Static) *testkit.Static {
		m, err := s.Current()
		if err != nil {
			t.Fatal(err)
		}
		m, err = tlsconf.NewMaterial(m.CertPEM, m.KeyPEM, both)
		return source(t, m, err)
	}
	asCA := func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }
	noURI := func(c *x509.Certificate) { c.URIs = nil; c.DNSNames = []string{"ca.istio-system.svc"} }
	twoURIs := func(c *x509.Certificate) { c.URIs = append(c.URIs, ca.ID("istio-system", "admin").URL()) }
	clientOnly := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }

	for name, tc := range map[string]struct {
		server, client *testkit.Static
		auth           tls.ClientAuthType
		allowed        []spiffeid.ID
		want           string // part of either end's error; empty: works
	}{
		"mutual":                         {server, client, tls.RequireAndVerifyClientCert, []spiffeid.ID{caID}, ""},
		"any id of the trust domain":     {server, client, tls.RequireAndVerifyClientCert, nil, ""},
		"client without certificate":     {server, ca.RootsOnly(), tls.VerifyClientCertIfGiven, []spiffeid.ID{caID}, ""},
		"client certificate is required": {server, ca.RootsOnly(), tls.RequireAndVerifyClientCert, []spiffeid.ID{caID}, "certificate"},
		"client has no id to compare":    {server, ca.RootsOnly(), tls.VerifyClientCertIfGiven, nil, "own trust domain"},
		"server has another id":          {client, server, tls.RequireAndVerifyClientCert, []spiffeid.ID{caID}, "expected"},
		"server of another CA": {stranger.NewSVID("istio-system", "ca"), client, tls.RequestClientCert, []spiffeid.ID{caID},
			"unknown authority"},
		"client of another CA": {server, withRoots(t, stranger.NewSVID("bookinfo", "reviews"), ca), tls.VerifyClientCertIfGiven,
			[]spiffeid.ID{caID}, "unknown authority"},
		"server expired": {ca.NewSVID("istio-system", "ca", past), client, tls.RequireAndVerifyClientCert, []spiffeid.ID{caID},
			"expired"},
		"client expired": {server, ca.NewSVID("bookinfo", "reviews", past), tls.RequireAndVerifyClientCert, []spiffeid.ID{caID},
			"expired"},
		"server of another trust domain": {trustBoth(other.NewSVID("istio-system", "ca")), trustBoth(client), tls.RequestClientCert, nil,
			"not of trust domain"},
		"client of another trust domain": {trustBoth(server), trustBoth(other.NewSVID("a", "b")), tls.RequireAndVerifyClientCert,
			[]spiffeid.ID{caID}, "not of trust domain"},
		"server presents an authority": {ca.NewSVID("istio-system", "ca", asCA), client, tls.RequireAndVerifyClientCert, []spiffeid.ID{caID},
			"authority"},
		"server without SPIFFE id": {ca.NewSVID("istio-system", "ca", noURI), client, tls.RequestClientCert, []spiffeid.ID{caID},
			"URI SAN"},
		"client with two SPIFFE ids": {server, ca.NewSVID("bookinfo", "reviews", twoURIs), tls.VerifyClientCertIfGiven, []spiffeid.ID{caID},
			"URI SAN"},
		"server with a client's usage": {ca.NewSVID("istio-system", "ca", clientOnly), client, tls.RequireAndVerifyClientCert,
			[]spiffeid.ID{caID}, "incompatible key usage"},
		"server has no certificate yet": {ca.RootsOnly(), client, tls.RequireAndVerifyClientCert, []spiffeid.ID{caID},
			tlsconf.ErrNoCertificate.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			serverErr, clientErr := handshake(t, tlsconf.Server(tc.server, tc.auth), tlsconf.Client(tc.client, tc.allowed...))
			if tc.want == "" {
				if serverErr != nil || clientErr != nil {
					t.Fatalf("server: %v, client: %v", serverErr, clientErr)
				}
				return
			}
			if clientErr == nil {
				t.Fatal("client thinks all is well")
			}
			if all := fmt.Sprintf("%v %v", serverErr, clientErr); !strings.Contains(all, tc.want) {
				t.Errorf("server: %v, client: %v; want %q", serverErr, clientErr, tc.want)
			}
		})
	}
}

// withRoots replaces the roots of s by those of ca.
func withRoots(t *testing.T, s *testkit.Static, ca *testkit.CA) *testkit.Static {
	t.Helper()
	m, err := s.Current()
	if err != nil {
		t.Fatal(err)
	}
	m, err = tlsconf.NewMaterial(m.CertPEM, m.KeyPEM, ca.RootPEM)
	return source(t, m, err)
}

func TestOlderTLSIsRefused(t *testing.T) {
	ca := testkit.PKI(t)
	old := tlsconf.Client(ca.NewSVID("a", "b"), ca.ID("istio-system", "ca"))
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, err := handshake(t, tlsconf.Server(ca.NewSVID("istio-system", "ca"), tls.NoClientCert), old); err == nil {
		t.Error("TLS 1.2 is spoken")
	}
}

// TestTLS12OnlyWithApprovedSuites: a server with ServerFrom(TLS 1.2) serves clients that offer nothing newer with the
// suites that FIPS 140-3 approves and no others. The clients of tlsconf, Fairlead's services, still require 1.3.
func TestTLS12OnlyWithApprovedSuites(t *testing.T) {
	ca := testkit.PKI(t)
	server := tlsconf.ServerFrom(tls.VersionTLS12, ca.NewSVID("istio-system", "ca"), tls.RequireAndVerifyClientCert)
	client := func(change func(*tls.Config)) error {
		cfg := tlsconf.Client(ca.NewSVID("a", "b"), ca.ID("istio-system", "ca"))
		cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		change(cfg)
		serverErr, clientErr := handshake(t, server, cfg)
		return errors.Join(serverErr, clientErr)
	}
	for _, suite := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		if !slices.Contains(suite.SupportedVersions, tls.VersionTLS12) {
			continue
		}
		// The certificate has an ECDSA key, so suites with RSA cannot be agreed on.
		want := suite.ID == tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 || suite.ID == tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
		if err := client(func(c *tls.Config) { c.CipherSuites = []uint16{suite.ID} }); (err == nil) != want {
			t.Errorf("%s: %v, want %v", suite.Name, err, want)
		}
	}
	if err := client(func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.X25519} }); err == nil {
		t.Error("TLS 1.2 on a curve that is not approved")
	}
	if err := client(func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	var version uint16
	if err := client(func(c *tls.Config) {
		c.MaxVersion, c.CurvePreferences = 0, []tls.CurveID{tls.X25519}
		verify := c.VerifyConnection
		c.VerifyConnection = func(s tls.ConnectionState) error { version = s.Version; return verify(s) }
	}); err != nil || version != tls.VersionTLS13 {
		t.Errorf("a client of TLS 1.3 gets version %x: %v", version, err)
	}
	stranger := testkit.PKI(t)
	if err := client(func(c *tls.Config) {
		c.GetClientCertificate = tlsconf.Client(stranger.NewSVID("a", "b")).GetClientCertificate
	}); err == nil {
		t.Error("a stranger's certificate is taken")
	}
	// A server of TLS 1.2 is none for Fairlead's services.
	old := tlsconf.ServerFrom(tls.VersionTLS12, ca.NewSVID("istio-system", "ca"), tls.NoClientCert)
	old.MaxVersion, old.GetConfigForClient = tls.VersionTLS12, func(*tls.ClientHelloInfo) (*tls.Config, error) {
		m, err := ca.NewSVID("istio-system", "ca").Current()
		if err != nil {
			return nil, err
		}
		return &tls.Config{MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*m.Certificate}}, nil
	}
	if _, err := handshake(t, old, tlsconf.Client(ca.NewSVID("a", "b"), ca.ID("istio-system", "ca"))); err == nil {
		t.Error("a service speaks TLS 1.2 to a server")
	}
	for text, want := range map[string]uint16{"": tls.VersionTLS13, "1.3": tls.VersionTLS13, "1.2": tls.VersionTLS12, "1.1": 0, "TLSv1.2": 0} {
		if got, err := tlsconf.ParseVersion(text); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %x, %v", text, got, err)
		}
	}
}

func TestMaterialIsLookedUpAtEachHandshake(t *testing.T) {
	ca, next := testkit.PKI(t), testkit.PKI(t)
	server, client := ca.NewSVID("istio-system", "ca"), ca.NewSVID("bookinfo", "reviews")
	sc := tlsconf.Server(server, tls.RequireAndVerifyClientCert)
	cc := tlsconf.Client(client, ca.ID("istio-system", "ca"))
	// A cache would let a resumed session skip what the roots now say.
	cc.ClientSessionCache = tls.NewLRUClientSessionCache(8)

	try := func() error {
		serverErr, clientErr := handshake(t, sc, cc)
		if serverErr != nil {
			return serverErr
		}
		return clientErr
	}
	for range 2 {
		if err := try(); err != nil {
			t.Fatal(err)
		}
	}
	// The server no longer trusts the old root.
	server.Set(current(t, withRoots(t, ca.NewSVID("istio-system", "ca"), next)))
	if err := try(); err == nil {
		t.Error("a client of a revoked root is let in")
	}
	// Both move to the new root.
	server.Set(current(t, next.NewSVID("istio-system", "ca")))
	if err := try(); err == nil {
		t.Error("a server of an unknown root is trusted")
	}
	client.Set(current(t, next.NewSVID("bookinfo", "reviews")))
	if err := try(); err != nil {
		t.Errorf("after both moved: %v", err)
	}
}

func current(t *testing.T, s tlsconf.Source) *tlsconf.Material {
	t.Helper()
	m, err := s.Current()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMaterialNeverPrintsTheKey(t *testing.T) {
	m := current(t, testkit.PKI(t).NewSVID("a", "b"))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if out := fmt.Sprintf(verb, m); strings.Contains(out, "PRIVATE") || strings.Contains(out, string(m.KeyPEM)) || len(out) > 200 {
			t.Errorf("%s prints %s", verb, out)
		}
	}
}

func TestParseRoots(t *testing.T) {
	ca := testkit.PKI(t)
	m := current(t, ca.NewSVID("a", "b"))
	for want, bundle := range map[string]string{
		"no certificate in PEM":         "hello",
		"not a CERTIFICATE":             string(ca.RootPEM) + string(m.KeyPEM),
		"not a certificate authority's": string(m.CertPEM),
		"entry 1":                       "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
	} {
		if _, err := tlsconf.ParseRoots([]byte(bundle)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := tlsconf.ParseRoots(append(ca.RootPEM, testkit.PKI(t).RootPEM...)); err != nil {
		t.Error(err)
	}
}

func FuzzParseRoots(f *testing.F) {
	f.Add(testkit.PKI(f).RootPEM)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"))
	f.Fuzz(func(t *testing.T, bundle []byte) {
		pool, err := tlsconf.ParseRoots(bundle)
		if err == nil && pool.Equal(x509.NewCertPool()) {
			t.Error("an empty pool is no error")
		}
	})
}

// A task that needs the own certificate starts when the certificate is there, and not at all if it ends before.
func TestIdentified(t *testing.T) {
	ca := testkit.PKI(t)
	source := ca.RootsOnly()
	ran := make(chan struct{})
	task := tlsconf.Identified(source, func(context.Context) error {
		if m, err := source.Current(); err != nil || m.Certificate == nil {
			t.Errorf("started with %v, %v", m, err)
		}
		close(ran)
		return errors.New("ended")
	})
	ended := make(chan error)
	go func() { ended <- task(t.Context()) }()
	m, err := ca.NewSVID("bookinfo", "reviews").Current()
	if err != nil {
		t.Fatal(err)
	}
	source.Set(m)
	<-ran
	if err := <-ended; err == nil || err.Error() != "ended" {
		t.Errorf("the task's result is %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tlsconf.Identified(ca.RootsOnly(), func(context.Context) error { return errors.New("ran") })(ctx); err != nil {
		t.Error(err)
	}
}

func TestServersOutsideOfTheMeshAreVerifiedByName(t *testing.T) {
	ca := testkit.PKI(t)
	chain, key := ca.NewServer("vault.example", "other.example")
	m, err := tlsconf.NewMaterial(chain, key, ca.RootPEM)
	if err != nil {
		t.Fatal(err)
	}
	server := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*m.Certificate}}
	for name, says := range map[string]string{"vault.example": "", "other.example": "", "evil.example": "not evil.example", "10.0.0.1": "10.0.0.1"} {
		_, err := handshake(t, server, tlsconf.ClientNamed(ca.RootsOnly(), name))
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", name, err, says)
		}
	}
	if _, err := handshake(t, server, tlsconf.ClientNamed(testkit.PKI(t).RootsOnly(), "vault.example")); err == nil {
		t.Error("a server with a foreign root was believed")
	}
}
