package service_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"log/slog"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/service"
	"fairlead.dev/services/ca/internal/signer/signertest"
)

func deps(log *testkit.Buffer) signer.Deps {
	return signer.Deps{TrustDomain: spiffeid.RequireTrustDomainFromString("cluster.local"), Log: slog.New(slog.NewTextHandler(log, nil))}
}

func TestIssue(t *testing.T) {
	f := newFixture(t, false)
	s := f.start(t)
	ready(t, s, f.Root)
	r, _ := signertest.Request(t)
	r.Template.DNSNames, r.Template.IPAddresses = []string{"web.shop.svc"}, []net.IP{net.IPv4(10, 0, 0, 1).To4(), net.ParseIP("fd00::1")}
	r.Profile = "short"
	if _, err := signertest.Issue(t, s, r); err != nil {
		t.Fatal(err)
	}
	f.set(func() {
		if f.asked.GetToken() != "" {
			t.Error("the token was sent to a server that needs none")
		}
		if !bytes.Equal(f.asked.GetCsr(), r.CSR) || f.asked.GetIdentity() != r.Identity.String() || f.asked.GetProfile() != "short" ||
			f.asked.GetIsCa() || f.asked.GetTtl().AsDuration().Round(time.Minute) != time.Hour {
			t.Errorf("asked: %v", f.asked)
		}
	})
	a, _ := s.Authorities()
	if len(a.Intermediates) != 1 || !a.Intermediates[0].Equal(f.Intermediate) || !a.NotAfter.Equal(f.Intermediate.NotAfter) {
		t.Errorf("the intermediate of the answer is not known: %v", a)
	}
	if can := s.Capabilities(); can != (signer.Capabilities{Extensions: true, NamesBesideCSR: true, Validity: true, Remote: true}) {
		t.Errorf("capabilities: %+v", can)
	}
}

func TestLies(t *testing.T) {
	f := newFixture(t, false)
	s := f.start(t)
	ready(t, s, f.Root)
	signertest.CheckLies(t, s, f.Upstream)
}

func TestWhatTheServerAnswers(t *testing.T) {
	f := newFixture(t, false)
	f.config.Timeout = metav1.Duration{Duration: 2 * time.Second}
	s := f.start(t)
	ready(t, s, f.Root)
	r, _ := signertest.Request(t)
	busy, err := status.New(codes.ResourceExhausted, "enough").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(7 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		set   func()
		fault signer.Fault
		says  []string
	}{
		"slow by 30 s":     {func() { f.delay = 30 * time.Second }, signer.Away, []string{"did not answer in time", f.config.Address}},
		"too much":         {func() { f.padding = 1 << 20 }, signer.Lied, []string{"more than 262144 bytes"}},
		"no certificate":   {func() { f.padding = 1 }, signer.Lied, []string{"without a certificate in PEM"}},
		"denied":           {func() { f.fails = status.Error(codes.PermissionDenied, "not you") }, signer.Refused, []string{"not you", "have"}},
		"bad request":      {func() { f.fails = status.Error(codes.InvalidArgument, "too long") }, signer.Refused, []string{"too long"}},
		"unknown method":   {func() { f.fails = status.Error(codes.Unimplemented, "unknown") }, signer.Refused, []string{"kind and address"}},
		"busy":             {func() { f.fails = busy.Err() }, signer.Busy, []string{"enough"}},
		"internal":         {func() { f.fails = status.Error(codes.Internal, "disk") }, signer.Away, []string{"disk"}},
		"repeats a token":  {func() { f.fails = status.Error(codes.Internal, signertest.Token) }, signer.Away, []string{"[secret]"}},
		"an endless reply": {func() { f.fails = status.Error(codes.Internal, strings.Repeat("no\n", 5000)) }, signer.Away, []string{"no no no"}},
	} {
		t.Run(name, func(t *testing.T) {
			f.set(tc.set)
			defer f.set(func() { f.delay, f.padding, f.fails = 0, 0, nil })
			_, err := s.Issue(t.Context(), r)
			signertest.WantError(t, err, tc.fault, tc.says...)
			if e, ok := err.(*signer.Error); name == "busy" && (!ok || e.RetryAfter != 7*time.Second) { //nolint:errorlint // what Issue returns
				t.Errorf("retry after %v, want 7s", err)
			}
		})
	}
	if _, err := signertest.Issue(t, s, r); err != nil {
		t.Errorf("after all of that: %v", err)
	}
}

func TestConnections(t *testing.T) {
	other := testkit.PKI(t)
	for name, tc := range map[string]struct {
		change func(*service.Config)
		says   []string
	}{
		"another ca's file": {func(c *service.Config) { c.CAFile = other.WriteRoot(t.TempDir()) },
			[]string{"no TLS connection", "unknown authority", "caFile"}},
		"another identity": {func(c *service.Config) { c.Identity += "x" }, []string{"no TLS connection", "/sa/signer", "identity"}},
		"another name": {func(c *service.Config) { c.Identity, c.ServerName = "", "signer.pki.svc" },
			[]string{"no TLS connection", "serverName"}},
		"no client's file": {func(c *service.Config) { c.CertFile, c.KeyFile = "", "" }, []string{"no TLS connection", "certFile"}},
		"roots of the machine": {func(c *service.Config) { *c = service.Config{Address: c.Address, ServerName: "localhost"} },
			[]string{"no TLS connection"}},
		"nobody there": {func(c *service.Config) { c.Address = testkit.FreeAddress(t).String() },
			[]string{"does not answer", "connection refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, false)
			tc.change(&f.config)
			s := f.start(t)
			r, _ := signertest.Request(t)
			_, err := s.Issue(t.Context(), r)
			signertest.WantError(t, err, signer.Away, tc.says...)
			testkit.Eventually(t, testkit.Patience, func() error { return contains(f.log, "cannot be followed") })
			if s.Problem() == nil {
				t.Error("that is no problem")
			}
		})
	}
}

func TestARepairedFileNeedsNoRestart(t *testing.T) {
	f := newFixture(t, false)
	good := f.pki.RootPEM
	testkit.WriteFile(t, f.config.CAFile, testkit.PKI(t).RootPEM)
	s := f.start(t)
	r, _ := signertest.Request(t)
	if _, err := s.Issue(t.Context(), r); err == nil {
		t.Fatal("the server was believed")
	}
	testkit.WriteFile(t, f.config.CAFile, good[:len(good)/2])
	testkit.WriteFile(t, f.config.CAFile, good)
	ready(t, s, f.Root)
	if _, err := signertest.Issue(t, s, r); err != nil {
		t.Error(err)
	}
}

func TestACutConnectionAndARestart(t *testing.T) {
	f := newFixture(t, false)
	s := f.start(t)
	ready(t, s, f.Root)
	r, _ := signertest.Request(t)
	f.set(func() { f.delay = 30 * time.Second })
	failed := make(chan error, 2)
	for range cap(failed) { // two calls at once
		go func() {
			_, err := s.Issue(context.Background(), r)
			failed <- err
		}()
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.asked == nil {
			return net.ErrClosed
		}
		return nil
	})
	go f.grpc.Stop()
	for range cap(failed) {
		signertest.WantError(t, <-failed, signer.Away)
	}
	f.set(func() { f.delay = 0 })
	lis, err := net.Listen("tcp", f.config.Address)
	if err != nil {
		t.Fatal(err)
	}
	f.serve(t, lis)
	testkit.Eventually(t, testkit.Patience, func() error {
		_, err := s.Issue(t.Context(), r)
		return err
	})
}

func TestAnnouncements(t *testing.T) {
	f := newFixture(t, true)
	f.config.Capabilities = []string{"extensions", "namesBesideCSR", "validity", "revocation"}
	can := &cav1.SignerCapabilities{Extensions: true, NamesBesideCsr: true, Validity: true, Revocation: true}
	f.announce <- &cav1.WatchAuthoritiesResponse{RootCertificates: signertest.PEM(f.Root), Capabilities: can}
	s := f.start(t)
	ready(t, s, f.Root)
	_, changed := s.Authorities()

	// The next root, ahead of its use, with the intermediate and a list; another's list is left out.
	next := signertest.NewCA(t, "next")
	list, foreign := revocations(t, f.CA), revocations(t, next)
	f.announce <- &cav1.WatchAuthoritiesResponse{
		RootCertificates: signertest.PEM(next.Root, f.Root), IntermediateCertificates: signertest.PEM(f.Intermediate),
		CertificateRevocationLists: [][]byte{list, foreign, []byte("nothing")}, Capabilities: can,
	}
	<-changed
	a := ready(t, s, next.Root)
	if len(a.Roots) != 2 || len(a.Intermediates) != 1 || !a.NotAfter.Equal(f.Intermediate.NotAfter) || len(a.CRLs) != 1 ||
		!bytes.Equal(a.CRLs[0], list) {
		t.Errorf("got %+v", a)
	}
	testkit.Eventually(t, testkit.Patience, func() error { return contains(f.log, "entry 2: no certificate of the signer") })

	// What cannot be believed changes nothing.
	leaf := f.Answer(mustTemplate(t))[0]
	for says, bad := range map[string]*cav1.WatchAuthoritiesResponse{
		"there is no certificate in PEM": {},
		"is not a certificate authority": {RootCertificates: signertest.PEM(leaf)},
		"more than 16 certificates":      {RootCertificates: signertest.PEM(repeated(f.Root, 17)...)},
		"more than 4 certificates": {
			RootCertificates: signertest.PEM(f.Root), IntermediateCertificates: signertest.PEM(repeated(f.Intermediate, 5)...),
		},
		"do not verify with the roots": {RootCertificates: signertest.PEM(f.Root), IntermediateCertificates: signertest.PEM(next.Intermediate)},
		"17 lists":                     {RootCertificates: signertest.PEM(f.Root), CertificateRevocationLists: make([][]byte, 17)},
		"without a certificate in PEM": {RootCertificates: []string{"nothing"}},
		"than the signer file says (validity": {
			RootCertificates: signertest.PEM(next.Root, f.Root), IntermediateCertificates: signertest.PEM(f.Intermediate),
			CertificateRevocationLists: [][]byte{list},
			Capabilities:               &cav1.SignerCapabilities{NeedsToken: true, Extensions: true, NamesBesideCsr: true, Revocation: true},
		},
	} {
		f.announce <- bad
		testkit.Eventually(t, testkit.Patience, func() error { return contains(f.log, says) })
		if now, _ := s.Authorities(); now != a {
			t.Errorf("%s: the authorities changed", says)
		}
		if strings.Contains(says, "signer file") {
			r, _ := signertest.Request(t)
			_, err := s.Issue(t.Context(), r)
			signertest.WantError(t, err, signer.Refused, "needsToken", "correct capabilities")
		}
		f.announce <- &cav1.WatchAuthoritiesResponse{
			RootCertificates: signertest.PEM(next.Root, f.Root), IntermediateCertificates: signertest.PEM(f.Intermediate),
			CertificateRevocationLists: [][]byte{list}, Capabilities: can,
		}
	}
	// One that is too long ends the stream.
	f.announce <- &cav1.WatchAuthoritiesResponse{RootCertificates: []string{strings.Repeat("x", 3<<20)}}
	testkit.Eventually(t, testkit.Patience, func() error { return contains(f.log, "received message larger than max") })
	if now, _ := s.Authorities(); now != a {
		t.Error("the authorities changed with the end of the stream")
	}
}

func TestTokensGoOnlyWhereTheyAreNeeded(t *testing.T) {
	f := newFixture(t, false)
	f.config.Capabilities = []string{"needsToken"}
	s := f.start(t)
	ready(t, s, f.Root)
	r, _ := signertest.Request(t)
	if _, err := signertest.Issue(t, s, r); err != nil {
		t.Fatal(err)
	}
	f.set(func() {
		if f.asked.GetToken() != signertest.Token || len(f.asked.GetExtensions()) != 0 {
			t.Errorf("asked: %v", f.asked)
		}
	})
	r.Token = ""
	_, err := s.Issue(t.Context(), r)
	signertest.WantError(t, err, signer.Unsuitable, "needs a token")
	r.Token, r.CSR = signertest.Token, nil
	_, err = s.Issue(t.Context(), r)
	signertest.WantError(t, err, signer.Unsuitable, "needs a CSR")
}

// TestAServerOfTheFirstContract knows neither times, usages and extensions nor WatchAuthorities.
func TestAServerOfTheFirstContract(t *testing.T) {
	f := newFixture(t, false)
	f.older = true
	s := f.start(t)
	ready(t, s, f.Root)
	r, _ := signertest.Request(t)
	_, err := signertest.Issue(t, s, r)
	signertest.WantError(t, err, signer.Lied, "lacks the extension")
	f.config.Capabilities = []string{"namesBesideCSR", "validity"}
	s = f.start(t)
	ready(t, s, f.Root)
	if _, err := signertest.Issue(t, s, r); err != nil {
		t.Error(err)
	}
}

func TestASilentServer(t *testing.T) {
	f := newFixture(t, true) // and nothing is in the channel
	f.config.Timeout = metav1.Duration{Duration: 100 * time.Millisecond}
	s := f.start(t)
	testkit.Eventually(t, testkit.Patience, func() error { return contains(f.log, "announced nothing for 100ms") })
	if a, _ := s.Authorities(); a != nil {
		t.Errorf("got %v", a)
	}
}

// TestTheCAsOwnCertificate: a server of the mesh, or with a DNS name, knows the ca by its SPIFFE ID.
func TestTheCAsOwnCertificate(t *testing.T) {
	f := newFixture(t, false)
	own := f.pki.NewSVID("istio-system", "ca")
	for name, change := range map[string]func(*service.Config){
		"roots of the mesh": func(c *service.Config) { c.CAFile = "" },
		"roots of a file":   func(*service.Config) {},
	} {
		cfg := f.config
		cfg.CertFile, cfg.KeyFile = "", ""
		change(&cfg)
		s, err := service.New(cfg, deps(&testkit.Buffer{}), own)
		if err != nil {
			t.Fatal(err)
		}
		testkit.Background(t, s.Run)
		ready(t, s, f.Root)
		r, _ := signertest.Request(t)
		if _, err := signertest.Issue(t, s, r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := service.New(service.Config{Address: "x:1", Identity: "spiffe://a/b"}, deps(&testkit.Buffer{}), nil); err == nil ||
		!strings.Contains(err.Error(), "caFile: is required") {
		t.Errorf("without any roots: %v", err)
	}
}

func TestUnixSocket(t *testing.T) {
	f := newFixture(t, false)
	path := filepath.Join(t.TempDir(), "signer.sock")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	plain := grpc.NewServer()
	cav1.RegisterSignerServiceServer(plain, f.server)
	go func() { _ = plain.Serve(lis) }()
	t.Cleanup(plain.Stop)
	f.config = service.Config{Address: "unix://" + path}
	s := f.start(t)
	ready(t, s, f.Root)
	r, _ := signertest.Request(t)
	if _, err := signertest.Issue(t, s, r); err != nil {
		t.Error(err)
	}
}

func TestManyAtOnce(t *testing.T) {
	f := newFixture(t, false)
	s := f.start(t)
	ready(t, s, f.Root)
	r, _ := signertest.Request(t)
	signertest.Flood(t, s, r, 1024)
}

func contains(log *testkit.Buffer, text string) error {
	if !strings.Contains(log.String(), text) {
		return status.Error(codes.NotFound, "the log lacks "+text+": "+log.String())
	}
	return nil
}

func repeated(c *x509.Certificate, n int) []*x509.Certificate {
	var list []*x509.Certificate
	for range n {
		list = append(list, c)
	}
	return list
}

func mustTemplate(t *testing.T) *x509.Certificate {
	r, _ := signertest.Request(t)
	return r.Template
}

func revocations(t *testing.T, by *signertest.CA) []byte {
	t.Helper()
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour),
	}, by.Intermediate, by.Key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
