package service_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/service"
	"fairlead.dev/services/ca/internal/signer/signertest"
)

// server is a second implementation of the contract, beside samples/external-signer: what the fields of a request say
// becomes a certificate, and nothing else does.
type server struct {
	cav1.UnimplementedSignerServiceServer
	*signertest.Upstream

	mu      sync.Mutex
	asked   *cav1.SignRequest
	older   bool // knows the fields alone that were in the contract from the start
	fails   error
	delay   time.Duration
	padding int
	// announce is what WatchAuthorities sends, each as soon as it is in the channel; nil means that there is only
	// GetRoots.
	announce chan *cav1.WatchAuthoritiesResponse
}

func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *server) Sign(ctx context.Context, r *cav1.SignRequest) (*cav1.SignResponse, error) {
	s.mu.Lock()
	s.asked = r
	delay, err, padding := s.delay, s.fails, s.padding
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(delay):
	}
	if err != nil {
		return nil, err
	}
	if s.older {
		r = &cav1.SignRequest{PublicKey: r.GetPublicKey(), UriSans: r.GetUriSans(), DnsSans: r.GetDnsSans(), Ttl: r.GetTtl(), IsCa: r.GetIsCa()}
		t, err := r.Template(time.Now())
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		return &cav1.SignResponse{CertificateChain: signertest.PEM(s.Answer(t)...)}, nil
	}
	t, err := template(r)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &cav1.SignResponse{CertificateChain: append(signertest.PEM(s.Answer(t)...), strings.Repeat("x", padding))[:2+min(padding, 1)]}, nil
}

func template(r *cav1.SignRequest) (*x509.Certificate, error) {
	key, err := x509.ParsePKIXPublicKey(r.GetPublicKey())
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		PublicKey: key, DNSNames: r.GetDnsSans(), NotBefore: r.GetNotBefore().AsTime(), NotAfter: r.GetNotAfter().AsTime(),
		KeyUsage: x509.KeyUsage(r.GetKeyUsages()), BasicConstraintsValid: true, IsCA: r.GetIsCa(),
	}
	for _, text := range r.GetUriSans() {
		u, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		t.URIs = append(t.URIs, u)
	}
	for _, text := range r.GetIpSans() {
		t.IPAddresses = append(t.IPAddresses, net.ParseIP(text))
	}
	for _, text := range r.GetExtendedKeyUsages() {
		t.ExtKeyUsage = append(t.ExtKeyUsage, map[string]x509.ExtKeyUsage{
			"1.3.6.1.5.5.7.3.1": x509.ExtKeyUsageServerAuth, "1.3.6.1.5.5.7.3.2": x509.ExtKeyUsageClientAuth,
		}[text])
	}
	for _, e := range r.GetExtensions() {
		var id asn1.ObjectIdentifier
		for part := range strings.SplitSeq(e.GetId(), ".") {
			n, err := strconv.Atoi(part)
			if err != nil {
				return nil, err
			}
			id = append(id, n)
		}
		t.ExtraExtensions = append(t.ExtraExtensions, pkix.Extension{Id: id, Critical: e.GetCritical(), Value: e.GetValue()})
	}
	return t, nil
}

func (s *server) GetRoots(context.Context, *cav1.GetRootsRequest) (*cav1.GetRootsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &cav1.GetRootsResponse{RootCertificates: signertest.PEM(s.Root)}, nil
}

func (s *server) WatchAuthorities(_ *cav1.WatchAuthoritiesRequest, stream grpc.ServerStreamingServer[cav1.WatchAuthoritiesResponse]) error {
	if s.announce == nil {
		return status.Error(codes.Unimplemented, "no such method")
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case a := <-s.announce:
			if err := stream.Send(a); err != nil {
				return err
			}
		}
	}
}

// fixture is a server on a loopback address with mutual TLS, and the files of a signer that uses it.
type fixture struct {
	*server
	pki      *testkit.CA
	listener net.Listener
	grpc     *grpc.Server
	config   service.Config
	log      *testkit.Buffer
}

func newFixture(t *testing.T, announces bool) *fixture {
	t.Helper()
	f := &fixture{server: &server{Upstream: signertest.NewUpstream(t)}, pki: testkit.PKI(t), listener: testkit.LoopbackListener(t)}
	if announces {
		f.announce = make(chan *cav1.WatchAuthoritiesResponse, 1)
	}
	f.serve(t, f.listener)
	cert, key := f.pki.NewServer("ca")
	dir := t.TempDir()
	f.config = service.Config{
		Address: f.listener.Addr().String(), Identity: "spiffe://cluster.local/ns/pki/sa/signer", CAFile: f.pki.WriteRoot(dir),
		CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"), Timeout: metav1.Duration{Duration: testkit.Patience},
	}
	testkit.WriteFile(t, f.config.CertFile, cert)
	testkit.WriteFile(t, f.config.KeyFile, key)
	return f
}

func (f *fixture) serve(t *testing.T, listener net.Listener) {
	m, err := f.pki.NewSVID("pki", "signer").Current()
	if err != nil {
		t.Fatal(err)
	}
	cfg := tlsconf.Server(testkit.NewStatic(m), 0)
	// The client need not be a workload.
	cfg.GetConfigForClient = nil
	cfg.Certificates, cfg.ClientAuth, cfg.ClientCAs, cfg.NextProtos = append(cfg.Certificates, *m.Certificate), 4, m.Roots, []string{"h2"}
	f.grpc = grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)))
	cav1.RegisterSignerServiceServer(f.grpc, f.server)
	go func() { _ = f.grpc.Serve(listener) }()
	t.Cleanup(f.grpc.Stop)
}

// start makes a signer and runs it until the end of the test.
func (f *fixture) start(t *testing.T) *service.Signer {
	t.Helper()
	f.log = &testkit.Buffer{}
	s, err := service.New(f.config, deps(f.log), nil)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, s.Run)
	return s
}

// ready waits until the signer knows the server's root.
func ready(t *testing.T, s *service.Signer, root *x509.Certificate) *signer.Authorities {
	t.Helper()
	var current *signer.Authorities
	testkit.Eventually(t, testkit.Patience, func() error {
		if current, _ = s.Authorities(); current == nil || !current.Roots[0].Equal(root) {
			return os.ErrNotExist
		}
		return nil
	})
	return current
}
