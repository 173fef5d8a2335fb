package istio_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/istio"
	"fairlead.dev/services/ca/internal/signer/signertest"
)

func deps(log *testkit.Buffer) signer.Deps {
	return signer.Deps{TrustDomain: spiffeid.RequireTrustDomainFromString("cluster.local"), Log: slog.New(slog.NewTextHandler(log, nil))}
}

func waitForRoots(t *testing.T, s signer.Issuer) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		if a, _ := s.Authorities(); a == nil {
			return os.ErrNotExist
		}
		return nil
	})
}

// server answers as istiod does, or as it should not.
type server struct {
	security.UnimplementedIstioCertificateServiceServer
	*signertest.Upstream
	address, dir string
	grpc         *grpc.Server

	mu       sync.Mutex
	asked    *security.IstioCertificateRequest
	metadata metadata.MD
	fails    error
	delay    time.Duration
	chain    []string
}

func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *server) CreateCertificate(ctx context.Context, r *security.IstioCertificateRequest) (*security.IstioCertificateResponse, error) {
	s.mu.Lock()
	s.asked = r
	s.metadata, _ = metadata.FromIncomingContext(ctx)
	delay, err, chain := s.delay, s.fails, s.chain
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(delay):
	}
	if err != nil || chain != nil {
		return &security.IstioCertificateResponse{CertChain: chain}, err
	}
	block, _ := pem.Decode([]byte(r.GetCsr()))
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	leaf := s.Answer(&x509.Certificate{
		PublicKey: csr.PublicKey, URIs: csr.URIs, NotBefore: time.Now().Add(-2 * time.Minute),
		NotAfter:    time.Now().Add(time.Duration(r.GetValidityDuration()) * time.Second),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	})
	return &security.IstioCertificateResponse{CertChain: signertest.PEM(append(leaf, s.Root)...)}, nil
}

func newServer(t *testing.T) (*server, istio.Config) {
	t.Helper()
	s := &server{Upstream: signertest.NewUpstream(t), dir: t.TempDir()}
	listener := testkit.LoopbackListener(t)
	s.address = listener.Addr().String()
	pki := testkit.PKI(t)
	cert, key := pki.NewServer("istiod.istio-system.svc")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	s.grpc = grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, ClientAuth: tls.RequestClientCert,
	})))
	security.RegisterIstioCertificateServiceServer(s.grpc, s)
	go func() { _ = s.grpc.Serve(listener) }()
	t.Cleanup(s.grpc.Stop)
	cfg := istio.Config{
		Address: s.address, ServerName: "istiod.istio-system.svc", CAFile: pki.WriteRoot(s.dir), RootsFile: filepath.Join(s.dir, "roots.pem"),
		Timeout: metav1.Duration{Duration: 2 * time.Second},
	}
	testkit.WriteFile(t, cfg.RootsFile, []byte(signertest.PEM(s.Root)[0]))
	return s, cfg
}

func start(t *testing.T, cfg istio.Config, log *testkit.Buffer) *istio.Signer {
	t.Helper()
	s, err := istio.New(cfg, deps(log))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, s.Run)
	return s
}

func TestLies(t *testing.T) {
	server, cfg := newServer(t)
	s := start(t, cfg, &testkit.Buffer{})
	waitForRoots(t, s)
	signertest.CheckLies(t, s, server.Upstream)
}

func TestTheRequest(t *testing.T) {
	server, cfg := newServer(t)
	cfg.ClusterID, cfg.CertSigners = "north", []string{"issuers.cert-manager.io/x"}
	s := start(t, cfg, &testkit.Buffer{})
	waitForRoots(t, s)
	r, _ := signertest.Request(t)
	r.Profile = "issuers.cert-manager.io/x"
	chain, err := signertest.Issue(t, s, r)
	if err != nil {
		t.Fatal(err)
	}
	if left := r.Template.NotAfter.Sub(chain[0].NotAfter); left < 20*time.Second || left > 40*time.Second {
		t.Errorf("the certificate ends %s before the time asked for", left)
	}
	server.set(func() {
		if got := server.asked.GetMetadata().GetFields()["CertSigner"].GetStringValue(); got != r.Profile {
			t.Errorf("CertSigner is %q", got)
		}
		if got := server.metadata.Get("authorization"); len(got) != 1 || got[0] != "Bearer "+signertest.Token {
			t.Errorf("authorization is %q", got)
		}
		if got := server.metadata.Get("clusterid"); len(got) != 1 || got[0] != "north" {
			t.Errorf("clusterid is %q", got)
		}
	})
	for says, change := range map[string]func(*signer.Request){
		"needs a token":         func(r *signer.Request) { r.Token = "" },
		"needs a CSR":           func(r *signer.Request) { r.CSR = nil },
		"no DNS names":          func(r *signer.Request) { r.Template.DNSNames = []string{"web"} },
		"IP addresses":          func(r *signer.Request) { r.Template.IPAddresses = []net.IP{net.IPv4zero} },
		"ask for a longer one":  func(r *signer.Request) { r.Template.NotAfter = time.Now().Add(time.Millisecond) },
		"not among certSigners": func(r *signer.Request) { r.Profile = "x" },
	} {
		bad, template := *r, *r.Template
		bad.Template = &template
		change(&bad)
		_, err := s.Issue(t.Context(), &bad)
		signertest.WantError(t, err, signer.Unsuitable, says)
	}
}

func TestWhatTheServerAnswers(t *testing.T) {
	server, cfg := newServer(t)
	s := start(t, cfg, &testkit.Buffer{})
	waitForRoots(t, s)
	r, _ := signertest.Request(t)
	other := signertest.NewCA(t, "other")
	for name, tc := range map[string]struct {
		set   func()
		fault signer.Fault
		says  []string
	}{
		"slow by 30 s":   {func() { server.delay = 30 * time.Second }, signer.Away, []string{"did not answer in time", server.address}},
		"no certificate": {func() { server.chain = []string{} }, signer.Lied, []string{"without a certificate"}},
		"text":           {func() { server.chain = []string{"hello"} }, signer.Lied, []string{"an entry without a certificate"}},
		"too much":       {func() { server.chain = []string{strings.Repeat("x", 1<<20)} }, signer.Lied, []string{"more than 262144 bytes"}},
		"another root": {func() { server.chain = signertest.PEM(append(other.Sign(t, r.Template), other.Root)...) }, signer.Lied,
			[]string{"calls these its roots", "roots.pem"}},
		"refused":         {func() { server.fails = status.Error(codes.Unauthenticated, signertest.Token) }, signer.Refused, []string{"[secret]", "audience"}},
		"a bad request":   {func() { server.fails = status.Error(codes.InvalidArgument, "TTL") }, signer.Refused, []string{"TTL"}},
		"no such service": {func() { server.fails = status.Error(codes.Unimplemented, "x") }, signer.Refused, []string{"kind and address"}},
		"busy":            {func() { server.fails = status.Error(codes.ResourceExhausted, "enough") }, signer.Busy, []string{"enough"}},
	} {
		t.Run(name, func(t *testing.T) {
			server.set(tc.set)
			defer server.set(func() { server.delay, server.chain, server.fails = 0, nil, nil })
			_, err := s.Issue(t.Context(), r)
			signertest.WantError(t, err, tc.fault, tc.says...)
		})
	}
	server.set(func() { server.delay = 30 * time.Second })
	done := make(chan error, 2)
	for range cap(done) {
		go func() {
			_, err := s.Issue(context.Background(), r)
			done <- err
		}()
	}
	time.AfterFunc(100*time.Millisecond, server.grpc.Stop)
	for range cap(done) {
		signertest.WantError(t, <-done, signer.Away)
	}
}

func TestConnections(t *testing.T) {
	other := testkit.PKI(t)
	for name, tc := range map[string]struct {
		change func(*istio.Config)
		says   []string
	}{
		"another ca's file": {func(c *istio.Config) { c.CAFile = other.WriteRoot(t.TempDir()) }, []string{"unknown authority", "caFile"}},
		"no file":           {func(c *istio.Config) { c.CAFile = "/nonexistent/ca.pem" }, []string{"/nonexistent/ca.pem"}},
		"the address":       {func(c *istio.Config) { c.ServerName = "" }, []string{"no TLS connection", "serverName"}},
		"nobody there":      {func(c *istio.Config) { c.Address = testkit.FreeAddress(t).String() }, []string{"does not answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, cfg := newServer(t)
			tc.change(&cfg)
			s := start(t, cfg, &testkit.Buffer{})
			r, _ := signertest.Request(t)
			_, err := s.Issue(t.Context(), r)
			signertest.WantError(t, err, signer.Away, tc.says...)
		})
	}
}

func TestRootsFile(t *testing.T) {
	server, cfg := newServer(t)
	var log testkit.Buffer
	root := signertest.PEM(server.Root)[0]
	testkit.WriteFile(t, cfg.RootsFile, []byte(root[:len(root)/2]))
	s := start(t, cfg, &log)
	said := func(text string) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			if !strings.Contains(log.String(), text) {
				return os.ErrNotExist
			}
			return nil
		})
	}
	said("without a certificate in PEM")
	if err := s.Problem(); err == nil || !strings.Contains(err.Error(), cfg.RootsFile) {
		t.Errorf("the problem is %v", err)
	}
	if a, _ := s.Authorities(); a != nil {
		t.Error("half of a file is announced")
	}
	testkit.WriteFile(t, cfg.RootsFile, []byte(root))
	waitForRoots(t, s)
	testkit.Eventually(t, testkit.Patience, s.Problem)
	before, changed := s.Authorities()
	testkit.NoError(t, os.Remove(cfg.RootsFile))
	said("no such file")
	next := signertest.NewCA(t, "next")
	testkit.WriteFile(t, cfg.RootsFile, []byte(signertest.PEM(server.Answer(request(t).Template)[0])[0]))
	said("not a certificate authority")
	if a, _ := s.Authorities(); a != before {
		t.Error("the roots changed while the file could not be used")
	}
	testkit.WriteFile(t, cfg.RootsFile, []byte(root+signertest.PEM(next.Root)[0]))
	<-changed
	if a, _ := s.Authorities(); len(a.Roots) != 2 {
		t.Errorf("got %v", a.Roots)
	}
}

func request(t *testing.T) *signer.Request {
	r, _ := signertest.Request(t)
	return r
}

func TestConfigs(t *testing.T) {
	for name, tc := range map[string]struct {
		config istio.Config
		says   []string
	}{
		"good":    {istio.Config{Address: "istiod.istio-system.svc:15012", RootsFile: "/roots"}, nil},
		"nothing": {istio.Config{}, []string{"address: is required", "rootsFile: is required"}},
		"bad": {istio.Config{
			Address: "istiod", RootsFile: "/x", ClusterID: "a\nb", CertSigners: []string{""}, Timeout: metav1.Duration{Duration: -1},
		},
			[]string{"no host:port", "clusterID: has", "certSigners: has", "timeout: is"}},
	} {
		err := tc.config.Check()
		if (err == nil) != (tc.says == nil) {
			t.Errorf("%s: %v", name, err)
		}
		for _, part := range tc.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v: lacks %q", name, err, part)
			}
		}
	}
}
