package app_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/rpc/rpctest"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/node-agent/internal/config"
	"fairlead.dev/services/node-agent/internal/identity"
	"fairlead.dev/services/node-agent/internal/sds"
)

// caller makes requests by mutual TLS through a proxy, each on a connection of its own.
type caller struct {
	p    *proxy
	own  tlsconf.Source
	want *testkit.CA
}

// call returns the certificate that the proxy showed.
func (c caller) call() (*x509.Certificate, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: tlsconf.Client(c.own, c.want.ID("shop", "web")),
	}}
	resp, err := client.Get("https://" + netip.AddrPortFrom(c.p.ip, appPort).String())
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || string(body) != "hello") {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return resp.TLS.PeerCertificates[0], err
}

// wantServes waits until the proxy serves with this certificate.
func (c caller) wantServes(m *tlsconf.Material) {
	c.p.t.Helper()
	testkit.Eventually(c.p.t, testkit.Patience, func() error {
		got, err := c.call()
		if err == nil && !got.Equal(m.Certificate.Leaf) {
			err = fmt.Errorf("the proxy shows certificate %x, want %x", got.SerialNumber, m.Certificate.Leaf.SerialNumber)
		}
		return err
	})
}

func material(t *testing.T, s tlsconf.Source) *tlsconf.Material {
	t.Helper()
	m, err := s.Current()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func writeSet(t *testing.T, set config.FileSet, m *tlsconf.Material) {
	t.Helper()
	for path, content := range map[string][]byte{set.Roots: m.RootsPEM, set.Chain: m.CertPEM, set.Key: m.KeyPEM} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		testkit.WriteFile(t, path, content)
	}
}

// provider serves source as another provider's SDS server does.
func provider(t *testing.T, path string, source tlsconf.Source, cfg sds.Config) (stop func()) {
	t.Helper()
	cfg.Source, cfg.Log, cfg.Registerer = source, testkit.Logger(t), prometheus.NewRegistry()
	server := sds.New(cfg)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	lis, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return rpctest.Serve(t, lis, rpc.ServerConfig{
		Service: "provider", Insecure: true, Policy: auth.Policy{"/envoy.service.secret.v3.SecretDiscoveryService/*": auth.Anonymous()},
	}, server.Register)
}

// shortDir is a directory in which a socket's path fits into its address.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "id")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// place moves the sources of a configuration into a directory, in which the agent would look for them.
func place(dir string) func(*config.Config) {
	return func(c *config.Config) {
		cwd, _ := os.Getwd()
		in := func(path *string) {
			if rest, inside := strings.CutPrefix(*path, cwd); inside {
				*path = filepath.Join(dir, rest)
			}
		}
		s := &c.Secrets
		in(&s.Socket)
		in(&s.RevocationsFile)
		for i := range s.Mounted {
			in(&s.Mounted[i].Chain)
			in(&s.Mounted[i].Key)
			in(&s.Mounted[i].Roots)
		}
	}
}

const (
	socketFile  = "var/run/secrets/workload-spiffe-uds/socket"
	credentials = "var/run/secrets/workload-spiffe-credentials"
)

func inDir(dir, chain, key, roots string) config.FileSet {
	return config.FileSet{Chain: filepath.Join(dir, chain), Key: filepath.Join(dir, key), Roots: filepath.Join(dir, roots)}
}

// Each source is taken before those after it, serves mutual TLS by a real Envoy, and its next certificate reaches Envoy
// without a restart.
func TestEverySourceServesMutualTLS(t *testing.T) {
	gke := func(dir string) config.FileSet {
		return inDir(filepath.Join(dir, credentials), "certificates.pem", "private_key.pem", "ca_certificates.pem")
	}
	standard := func(dir string) config.FileSet {
		return inDir(filepath.Join(dir, credentials), "cert-chain.pem", "key.pem", "root-cert.pem")
	}
	certs := func(dir string) config.FileSet {
		return inDir(filepath.Join(dir, "etc/certs"), "cert-chain.pem", "key.pem", "root-cert.pem")
	}
	fromFiles := func(set func(string) config.FileSet) func(*testing.T, string, *testkit.Static) {
		return func(t *testing.T, dir string, s *testkit.Static) { writeSet(t, set(dir), material(t, s)) }
	}
	for _, tc := range []struct {
		name  string
		kind  identity.Kind
		env   []string
		first func(*testing.T, string, *testkit.Static)
		// beside are later sources, which must not be used.
		beside []func(*testing.T, string, *testkit.Static)
	}{
		{"external SDS server", identity.Socket, nil, func(t *testing.T, dir string, s *testkit.Static) {
			if _, err := os.Stat(filepath.Join(dir, socketFile)); err != nil {
				provider(t, filepath.Join(dir, socketFile), s, sds.Config{})
			}
		}, []func(*testing.T, string, *testkit.Static){fromFiles(gke), fromFiles(certs)}},
		{"credentials as of GKE", identity.Files, nil, fromFiles(gke),
			[]func(*testing.T, string, *testkit.Static){fromFiles(standard), fromFiles(certs)}},
		{"mounted credentials", identity.Files, nil, fromFiles(standard), []func(*testing.T, string, *testkit.Static){fromFiles(certs)}},
		{"FILE_MOUNTED_CERTS", identity.Files, []string{"FILE_MOUNTED_CERTS=true"}, fromFiles(certs), nil},
		{"files that are there", identity.Files, nil, fromFiles(certs), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMesh(t)
			dir := shortDir(t)
			m.configure = place(dir)
			source, other := m.PKI.NewSVID("shop", "web"), m.PKI.NewSVID("shop", "web")
			tc.first(t, dir, source)
			for _, beside := range tc.beside {
				beside(t, dir, other)
			}
			xds, _, _ := m.xds("")
			p := m.start("127.0.0.1:1", xds, tc.env...)
			m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
			p.wantReady()
			c := caller{p, m.PKI.NewSVID("shop", "client"), m.PKI}
			c.wantServes(material(t, source))
			p.wantMetric(fmt.Sprintf(`fairlead_node_agent_identity_source{source=%q} 1`, tc.kind))
			p.wantMetric(`istio_agent_cert_expiry_seconds{resource_name="default"}`)

			source.Set(material(t, m.PKI.NewSVID("shop", "web")))
			tc.first(t, dir, source)
			c.wantServes(material(t, source))
			if n := p.log.count("Envoy started"); n != 1 {
				t.Errorf("Envoy has been started %d times", n)
			}
		})
	}
}

func (p *proxy) wantMetric(line string) {
	p.t.Helper()
	_, body, err := get(p.url(15020, "/metrics"))
	if err != nil || !strings.Contains(body, line) {
		p.t.Errorf("metrics lack %s: %v", line, err)
	}
}

// The certificate of another provider's mesh is not trusted by the control plane: a token authenticates there.
func TestCertificateOfAnotherAuthorityServesWorkloadsOnly(t *testing.T) {
	m := newMesh(t)
	other := testkit.PKI(t)
	dir := shortDir(t)
	m.configure = place(dir)
	source := other.NewSVID("shop", "web")
	writeSet(t, inDir(filepath.Join(dir, "etc/certs"), "cert-chain.pem", "key.pem", "root-cert.pem"), material(t, source))
	xds, _, _ := m.xds("")
	p := m.start("127.0.0.1:1", xds, "FILE_MOUNTED_CERTS=true")
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	caller{p, other.NewSVID("shop", "client"), other}.wantServes(material(t, source))
	p.wantLog("the control plane does not trust the workload's certificate, a token authenticates", 1)
}

// Files that are replaced by half are not served: the pair before them stays, and the log names the files.
func TestHalfWrittenFilesAreNotServed(t *testing.T) {
	m := newMesh(t)
	dir := shortDir(t)
	m.configure = place(dir)
	set := inDir(filepath.Join(dir, "etc/certs"), "cert-chain.pem", "key.pem", "root-cert.pem")
	first, second := material(t, m.PKI.NewSVID("shop", "web")), material(t, m.PKI.NewSVID("shop", "web"))
	writeSet(t, set, first)
	xds, _, _ := m.xds("")
	p := m.start("127.0.0.1:1", xds, "FILE_MOUNTED_CERTS=true")
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	c := caller{p, m.PKI.NewSVID("shop", "client"), m.PKI}
	c.wantServes(first)
	testkit.WriteFile(t, set.Key, second.KeyPEM)
	p.wantLog("TLS files cannot be used", 1)
	c.wantServes(first)
	testkit.WriteFile(t, set.Chain, second.CertPEM)
	c.wantServes(second)
}

// A demanded file that is not there is named, and waited for.
func TestFilesThatAreDemandedAreWaitedFor(t *testing.T) {
	m := newMesh(t)
	dir := shortDir(t)
	m.configure = place(dir)
	set := inDir(filepath.Join(dir, "etc/certs"), "cert-chain.pem", "key.pem", "root-cert.pem")
	xds, _, _ := m.xds("")
	p := m.start("127.0.0.1:1", xds, "FILE_MOUNTED_CERTS=true")
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	testkit.Eventually(t, testkit.Patience, func() error {
		_, body, err := get(p.url(15020, "/healthz/ready"))
		if err == nil && !strings.Contains(body, set.Roots) {
			err = fmt.Errorf("%q does not name %s", body, set.Roots)
		}
		return err
	})
	source := m.PKI.NewSVID("shop", "web")
	writeSet(t, set, material(t, source))
	p.wantReady()
	caller{p, m.PKI.NewSVID("shop", "client"), m.PKI}.wantServes(material(t, source))
}

// With caCertificatesPem Envoy accepts clients of another mesh, too; with a list of revoked certificates none of those
// on it, from the moment at which the list is there.
func TestRootsOfAnotherMeshAndRevokedCertificates(t *testing.T) {
	m := newMesh(t)
	foreign := testkit.NewCA(t, "other.example", time.Now())
	dir := shortDir(t)
	m.configure = func(c *config.Config) {
		place(dir)(c)
		c.Secrets.ExtraRoots = []string{string(foreign.RootPEM)}
	}
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	p := m.start(ca, xds)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	guest := *material(t, foreign.NewSVID("shop", "client"))
	guest.Roots = material(t, m.PKI.RootsOnly()).Roots
	from := func(own *tlsconf.Material) caller { return caller{p, testkit.NewStatic(own), m.PKI} }
	if _, err := from(&guest).call(); err != nil {
		t.Errorf("a client of the other mesh: %v", err)
	}
	stranger := *material(t, testkit.PKI(t).NewSVID("shop", "client"))
	stranger.Roots = guest.Roots
	if _, err := from(&stranger).call(); err == nil {
		t.Error("a client of neither mesh is served")
	}

	good, revoked := material(t, m.PKI.NewSVID("shop", "client")), material(t, m.PKI.NewSVID("shop", "client"))
	if _, err := from(revoked).call(); err != nil {
		t.Errorf("before it is revoked: %v", err)
	}
	list := filepath.Join(dir, "var/run/secrets/istio/crl/ca-crl.pem")
	if err := os.MkdirAll(filepath.Dir(list), 0o700); err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, list, append(m.PKI.Revoke(new(big.Int).Set(revoked.Certificate.Leaf.SerialNumber)), foreign.Revoke()...))
	testkit.Eventually(t, testkit.Patience, func() error {
		if _, err := from(revoked).call(); err == nil {
			return fmt.Errorf("the revoked certificate is accepted")
		}
		return nil
	})
	for name, own := range map[string]*tlsconf.Material{"own": good, "foreign": &guest} {
		if _, err := from(own).call(); err != nil {
			t.Errorf("a certificate of the %s mesh that is not on the list: %v", name, err)
		}
	}
}

// OUTPUT_CERTS has what Envoy serves, and is enough for the next start although the ca is away and the token is gone.
func TestWrittenCertificatesServeARestart(t *testing.T) {
	m := newMesh(t)
	out := filepath.Join(t.TempDir(), "certs")
	ca, stop := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	p := m.start(ca, xds, "OUTPUT_CERTS="+out)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	p.wantLog("the workload's certificate files are written", 1)
	written, err := tls.LoadX509KeyPair(filepath.Join(out, "cert-chain.pem"), filepath.Join(out, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	p.stop()
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	stop()
	m.configure = func(c *config.Config) { c.TokenFile = filepath.Join(out, "no-token") }
	again := m.start(ca, xds, "OUTPUT_CERTS="+out, "PROV_CERT="+out)
	m.inbound("2", again.ip, application(t, http.HandlerFunc(hello)), true)
	again.wantReady()
	caller{again, m.PKI.NewSVID("shop", "client"), m.PKI}.wantServes(&tlsconf.Material{Certificate: &written})
}

// Roots for one trust domain verify peers of that domain alone, and those of the mesh peers of its own.
func TestRootsOfATrustDomainVerifyThatDomainAlone(t *testing.T) {
	m := newMesh(t)
	foreign := testkit.NewCA(t, "other.example", time.Now())
	m.configure = func(c *config.Config) {
		c.Secrets.Anchors = []config.Anchor{{PEM: string(foreign.RootPEM), TrustDomains: []string{"other.example"}}}
	}
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	p := m.start(ca, xds)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	wantDomains(t, p, m.PKI, foreign)
}

// wantDomains asserts that the proxy verifies the peers of own and foreign with the roots of their domains.
func wantDomains(t *testing.T, p *proxy, own, foreign *testkit.CA) {
	t.Helper()
	roots := material(t, own.RootsOnly()).Roots
	call := func(ca *testkit.CA, domain spiffeid.TrustDomain) error {
		as := *ca
		as.TrustDomain = domain
		m := *material(t, as.NewSVID("shop", "client"))
		m.Roots = roots
		_, err := caller{p, testkit.NewStatic(&m), own}.call()
		return err
	}
	for _, ca := range []*testkit.CA{own, foreign} {
		testkit.Eventually(t, testkit.Patience, func() error { return call(ca, ca.TrustDomain) })
	}
	// The names that the listener demands count as well.
	other := *material(t, own.NewSVID("shop", "other"))
	if _, err := (caller{p, testkit.NewStatic(&other), own}).call(); err == nil {
		t.Error("a peer of another name is accepted")
	}
	for _, tc := range []struct {
		ca     *testkit.CA
		domain spiffeid.TrustDomain
	}{{foreign, own.TrustDomain}, {own, foreign.TrustDomain}, {own, spiffeid.RequireTrustDomainFromString("third.example")}} {
		if err := call(tc.ca, tc.domain); err == nil {
			t.Errorf("the authority of %s has a peer of %s accepted", tc.ca.TrustDomain, tc.domain)
		}
	}
}

// The validation context of an external SDS server, as SPIRE sends it, reaches Envoy as it is; the agent itself finds
// its own roots in it.
func TestTrustDomainsOfAnExternalServer(t *testing.T) {
	m := newMesh(t)
	foreign := testkit.NewCA(t, "other.example", time.Now())
	dir := shortDir(t)
	m.configure = place(dir)
	validator := &tlsv3.SPIFFECertValidatorConfig{}
	for _, ca := range []*testkit.CA{foreign, m.PKI} {
		validator.TrustDomains = append(validator.TrustDomains, &tlsv3.SPIFFECertValidatorConfig_TrustDomain{
			Name: ca.TrustDomain.Name(), TrustBundle: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: ca.RootPEM}},
		})
	}
	source := m.PKI.NewSVID("shop", "web")
	provider(t, filepath.Join(dir, socketFile), source, sds.Config{Validation: func() *tlsv3.CertificateValidationContext {
		return &tlsv3.CertificateValidationContext{CustomValidatorConfig: &corev3.TypedExtensionConfig{Name: "envoy.tls.cert_validator.spiffe",
			TypedConfig: pack(t, validator)}}
	}})
	xds, _, _ := m.xds("")
	p := m.start("127.0.0.1:1", xds)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	caller{p, m.PKI.NewSVID("shop", "client"), m.PKI}.wantServes(material(t, source))
	wantDomains(t, p, m.PKI, foreign)
}

// While the external server is away the last certificate serves; when it comes back, its next one does.
func TestExternalServerMayGoAway(t *testing.T) {
	m := newMesh(t)
	dir := shortDir(t)
	m.configure = place(dir)
	path := filepath.Join(dir, socketFile)
	first, second := m.PKI.NewSVID("shop", "web"), m.PKI.NewSVID("shop", "web")
	stop := provider(t, path, first, sds.Config{})
	xds, _, _ := m.xds("")
	p := m.start("127.0.0.1:1", xds)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	c := caller{p, m.PKI.NewSVID("shop", "client"), m.PKI}
	stop()
	p.wantLog("the external SDS server does not serve", 1)
	c.wantServes(material(t, first))
	_ = os.Remove(path)
	provider(t, path, second, sds.Config{})
	c.wantServes(material(t, second))
}

// Roots that a control plane pushes are trusted from then on, and not any more once it takes them back.
func TestRootsThatTheControlPlanePushes(t *testing.T) {
	m := newMesh(t)
	foreign := testkit.NewCA(t, "other.example", time.Now())
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	p := m.start(ca, xds, "PROXY_CONFIG_XDS_AGENT=true")
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	guest := *material(t, foreign.NewSVID("shop", "client"))
	guest.Roots = material(t, m.PKI.RootsOnly()).Roots
	c := caller{p, testkit.NewStatic(&guest), m.PKI}
	if _, err := c.call(); err == nil {
		t.Error("a client of the other mesh is served before its roots are there")
	}
	push := func(roots ...string) {
		t.Helper()
		if err := m.pushed.UpdateResource("ca-certificates", &meshv1alpha1.ProxyConfig{CaCertificatesPem: roots}); err != nil {
			t.Fatal(err)
		}
	}
	push(string(foreign.RootPEM))
	testkit.Eventually(t, testkit.Patience, func() error { _, err := c.call(); return err })
	push()
	testkit.Eventually(t, testkit.Patience, func() error {
		if _, err := c.call(); err == nil {
			return errors.New("still served")
		}
		return nil
	})
}

// The agent opens the port of the token exchange that the configuration names.
func TestTokenExchangeIsOpen(t *testing.T) {
	m := newMesh(t)
	port := freePort(t)
	m.start("127.0.0.1:1", "127.0.0.1:1", fmt.Sprintf("STS_PORT=%d", port), "GCP_METADATA=project|12|cluster|zone")
	to := fmt.Sprintf("http://127.0.0.1:%d/token", port)
	testkit.Eventually(t, testkit.Patience, func() error {
		resp, err := http.PostForm(to, url.Values{"grant_type": {"password"}})
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && (resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), `"error":"unsupported_grant_type"`)) {
			err = fmt.Errorf("%s: %s", resp.Status, body)
		}
		return err
	})
}
