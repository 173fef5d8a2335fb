package stepca_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/signertest"
	"fairlead.dev/services/ca/internal/signer/stepca"
	"fairlead.dev/services/ca/internal/signer/upstream"
)

// server answers as step-ca does, or as it should not.
type server struct {
	*signertest.Upstream
	t    *testing.T
	http *httptest.Server
	key  *ecdsa.PrivateKey

	mu sync.Mutex
	// answer is written instead of a certificate.
	answer http.HandlerFunc
	roots  []*x509.Certificate
	tokens map[string]bool
	token  string
}

func (s *server) set(answer http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	answer := s.answer
	s.mu.Unlock()
	switch {
	case r.URL.Path == "/roots":
		s.mu.Lock()
		roots := s.roots
		s.mu.Unlock()
		if roots == nil {
			roots = []*x509.Certificate{s.Root}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"crts": signertest.PEM(roots...)})
	case answer != nil:
		answer(w, r)
	default:
		s.sign(w, r)
	}
}

func (s *server) sign(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		CSR      string    `json:"csr"`
		Token    string    `json:"ott"`
		NotAfter time.Time `json:"notAfter"`
	}
	var claims struct {
		jwt.Claims
		SANs       []string `json:"sans"`
		Extensions []struct {
			ID    string `json:"id"`
			Value []byte `json:"value"`
		} `json:"extensions"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		s.t.Error(err)
	}
	token, err := jwt.ParseSigned(asked.Token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil || token.Claims(&s.key.PublicKey, &claims) != nil {
		http.Error(w, `{"status":401,"message":"not authorized"}`, http.StatusUnauthorized)
		return
	}
	s.mu.Lock()
	used := s.tokens[claims.ID]
	s.tokens[claims.ID], s.token = true, asked.Token
	s.mu.Unlock()
	if used || claims.Issuer != "fairlead" || claims.Expiry.Time().After(time.Now().Add(5*time.Minute)) {
		s.t.Errorf("a bad token: %+v", claims)
	}
	block, _ := pem.Decode([]byte(asked.CSR))
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		s.t.Error(err)
		return
	}
	leaf := &x509.Certificate{
		PublicKey: csr.PublicKey, NotBefore: time.Now().Add(-time.Minute), NotAfter: asked.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}
	for _, name := range claims.SANs {
		if u, err := url.Parse(name); err == nil && u.Scheme != "" {
			leaf.URIs = append(leaf.URIs, u)
		}
	}
	for _, e := range claims.Extensions {
		var id asn1.ObjectIdentifier
		for part := range strings.SplitSeq(e.ID, ".") {
			n, _ := strconv.Atoi(part)
			id = append(id, n)
		}
		leaf.ExtraExtensions = append(leaf.ExtraExtensions, pkix.Extension{Id: id, Value: e.Value})
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"certChain": signertest.PEM(s.Answer(leaf)...)})
}

func newServer(t *testing.T) (*server, stepca.Config) {
	t.Helper()
	s := &server{Upstream: signertest.NewUpstream(t), t: t, key: catest.Key(t), tokens: map[string]bool{}}
	s.http = httptest.NewUnstartedServer(s)
	own := catest.Key(t)
	chain := s.Sign(t, &x509.Certificate{
		PublicKey: own.Public(), DNSNames: []string{"step-ca.example"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	s.http.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{chain[0].Raw, chain[1].Raw}, PrivateKey: own}}}
	s.http.StartTLS()
	t.Cleanup(s.http.Close)
	file := filepath.Join(t.TempDir(), "key.pem")
	testkit.WriteFile(t, file, testkit.KeyPEM(t, s.key))
	return s, stepca.Config{
		URL: s.http.URL, ServerName: "step-ca.example", Fingerprints: []string{upstream.Fingerprint(s.Root)}, Provisioner: "fairlead",
		JWK: &stepca.JWK{KeyFile: file}, Extensions: true, Timeout: metav1.Duration{Duration: 2 * time.Second},
	}
}

func TestLies(t *testing.T) {
	server, cfg := newServer(t)
	s := start(t, cfg, &testkit.Buffer{})
	ready(t, s)
	signertest.CheckLies(t, s, server.Upstream)
}

func TestTheRequest(t *testing.T) {
	_, cfg := newServer(t)
	s := start(t, cfg, &testkit.Buffer{})
	ready(t, s)
	if can := s.Capabilities(); can != (signer.Capabilities{Extensions: true, Validity: true, Remote: true}) {
		t.Errorf("capabilities: %+v", can)
	}
	for says, change := range map[string]func(*signer.Request){
		"needs a CSR":   func(r *signer.Request) { r.CSR = nil },
		"is no profile": func(r *signer.Request) { r.Profile = "x" },
	} {
		r, _ := signertest.Request(t)
		change(r)
		_, err := s.Issue(t.Context(), r)
		signertest.WantError(t, err, signer.Unsuitable, says)
	}
}

func TestWhatTheServerAnswers(t *testing.T) {
	server, cfg := newServer(t)
	s := start(t, cfg, &testkit.Buffer{})
	ready(t, s)
	r, _ := signertest.Request(t)
	status := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, code) }
	}
	end := make(chan struct{})
	defer close(end)
	slow := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-end:
		case <-time.After(30 * time.Second):
		}
	}
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		fault  signer.Fault
		says   []string
	}{
		"slow by 30 s":   {slow, signer.Away, []string{"did not answer in time", server.http.URL}},
		"not authorized": {status(401, `{"status":401,"message":"not you"}`), signer.Refused, []string{"(401): not you", "compare provisioner"}},
		"policy":         {status(403, `{"status":403,"message":"requested duration"}`), signer.Refused, []string{"requested duration"}},
		"a bad request":  {status(400, `<html>`), signer.Refused, []string{"<html>"}},
		"busy":           {status(429, `{}`), signer.Busy, []string{"no more requests"}},
		"broken":         {status(500, `{"message":"disk"}`), signer.Away, []string{"disk"}},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/other", http.StatusTemporaryRedirect)
		}, signer.Lied, []string{"307"}},
		"no JSON":         {status(200, `hello`), signer.Lied, []string{"no certificate"}},
		"no certificate":  {status(201, `{"certChain":[]}`), signer.Lied, []string{"without a certificate"}},
		"too much":        {status(201, `{"crt":"`+strings.Repeat("x", 1<<20)+`"}`), signer.Lied, []string{"more than 262144 bytes"}},
		"cut":             {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, signer.Away, []string{"does not answer"}},
		"repeats a token": {status(500, signertest.Token), signer.Away, []string{"[secret]"}},
	} {
		t.Run(name, func(t *testing.T) {
			server.set(tc.answer)
			defer server.set(nil)
			_, err := s.Issue(t.Context(), r)
			signertest.WantError(t, err, tc.fault, tc.says...)
		})
	}
	// The token of the ca itself, which is another one each time.
	server.set(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Token string `json:"ott"`
		}
		_ = json.NewDecoder(r.Body).Decode(&asked)
		http.Error(w, asked.Token, http.StatusForbidden)
	})
	_, err := s.Issue(t.Context(), r)
	signertest.WantError(t, err, signer.Refused, "[secret]")
	server.set(slow)
	done := make(chan error, 2)
	for range cap(done) {
		go func() {
			_, err := s.Issue(context.Background(), r)
			done <- err
		}()
	}
	time.AfterFunc(100*time.Millisecond, server.http.CloseClientConnections)
	for range cap(done) {
		signertest.WantError(t, <-done, signer.Away, "does not answer")
	}
	server.set(nil)
	if _, err := signertest.Issue(t, s, r); err != nil {
		t.Errorf("after all of that: %v", err)
	}
}

func TestConnections(t *testing.T) {
	other := signertest.NewCA(t, "other")
	log := &testkit.Buffer{}
	for name, tc := range map[string]struct {
		change func(*stepca.Config)
		says   []string
		logs   string
	}{
		"another fingerprint": {func(c *stepca.Config) { c.Fingerprints[0] = upstream.Fingerprint(other.Root) },
			[]string{"no root of step-ca is known", "fingerprints"}, "has no root with one of the fingerprints"},
		"another name": {func(c *stepca.Config) { c.ServerName = "" }, []string{"no TLS connection", "serverName"}, ""},
		"another file": {func(c *stepca.Config) {
			c.Fingerprints, c.RootsFile = nil, filepath.Join(t.TempDir(), "roots.pem")
			testkit.WriteFile(t, c.RootsFile, []byte(signertest.PEM(other.Root)[0]))
		}, []string{"unknown authority", "rootsFile"}, ""},
		"nobody there": {func(c *stepca.Config) { c.URL = "https://" + testkit.FreeAddress(t).String() },
			[]string{"does not answer", "connection refused"}, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			_, cfg := newServer(t)
			tc.change(&cfg)
			s := start(t, cfg, log)
			if tc.logs == "" {
				ready(t, s)
			}
			testkit.Eventually(t, testkit.Patience, func() error {
				if !strings.Contains(log.String(), tc.logs) {
					return os.ErrNotExist
				}
				return nil
			})
			r, _ := signertest.Request(t)
			_, err := s.Issue(t.Context(), r)
			signertest.WantError(t, err, signer.Away, tc.says...)
		})
	}
}

// TestPinnedRoots: roots are added when step-ca has them, never lost because somebody leaves them out, and never
// trusted without a fingerprint in the signer file.
func TestPinnedRoots(t *testing.T) {
	server, cfg := newServer(t)
	next, stranger := signertest.NewCA(t, "next"), signertest.NewCA(t, "stranger")
	cfg.Fingerprints = append(cfg.Fingerprints, strings.ToUpper(upstream.Fingerprint(next.Root)))
	clock, log := testkit.NewClock(time.Now()), &testkit.Buffer{}
	d := deps(log)
	d.Clock = clock
	s, err := stepca.New(cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, s.Run)
	ready(t, s)
	for what, answer := range map[string][]*x509.Certificate{
		"the next one beside it and a stranger": {stranger.Root, next.Root, server.Root},
		"the next one alone":                    {next.Root},
		"a stranger alone":                      {stranger.Root},
	} {
		server.mu.Lock()
		server.roots = answer
		server.mu.Unlock()
		clock.WaitFor(t, 1)
		clock.Advance(time.Minute)
		clock.WaitFor(t, 1)
		a, _ := s.Authorities()
		if !a.Roots[0].Equal(server.Root) || len(a.Roots) > 2 || len(a.Roots) == 2 && !a.Roots[1].Equal(next.Root) {
			t.Errorf("%s: %d roots", what, len(a.Roots))
		}
	}
	if a, _ := s.Authorities(); len(a.Roots) != 2 {
		t.Errorf("%d roots at the end", len(a.Roots))
	}
	if !strings.Contains(log.String(), upstream.Fingerprint(stranger.Root)) {
		t.Errorf("nobody learns of the stranger: %s", log.String())
	}
}

func TestConfigs(t *testing.T) {
	good := stepca.Config{URL: "https://step-ca:9000", RootsFile: "/roots", Provisioner: "fairlead", JWK: &stepca.JWK{KeyFile: "/key"}}
	for name, tc := range map[string]struct {
		change func(*stepca.Config)
		says   []string
	}{
		"good":              {func(*stepca.Config) {}, nil},
		"a slash":           {func(c *stepca.Config) { c.URL += "/" }, nil},
		"nothing":           {func(c *stepca.Config) { *c = stepca.Config{} }, []string{"url: is", "rootsFile, fing", "provisioner: is", "jwk, x5c: one"}},
		"plain HTTP":        {func(c *stepca.Config) { c.URL = "http://step-ca" }, []string{"url: is not of the form"}},
		"a path":            {func(c *stepca.Config) { c.URL += "/1.0/sign" }, []string{"url: is not of the form"}},
		"a password in it":  {func(c *stepca.Config) { c.URL = "https://u:secret@step-ca" }, []string{"url: is not of the form"}},
		"both roots":        {func(c *stepca.Config) { c.Fingerprints = []string{"aa"} }, []string{"both are set"}},
		"a bad fingerprint": {func(c *stepca.Config) { c.RootsFile, c.Fingerprints = "", []string{"aa"} }, []string{`"aa" is no SHA-256`}},
		"both keys":         {func(c *stepca.Config) { c.X5C = &stepca.X5C{} }, []string{"jwk, x5c: both"}},
		"half a key":        {func(c *stepca.Config) { c.JWK, c.X5C = nil, &stepca.X5C{CertFile: "/c"} }, []string{"x5c.certFile, x5c.keyFile"}},
		"no key":            {func(c *stepca.Config) { c.JWK = &stepca.JWK{} }, []string{"jwk.keyFile"}},
		"long patience":     {func(c *stepca.Config) { c.Timeout = metav1.Duration{Duration: time.Hour} }, []string{"timeout"}},
	} {
		c := good
		tc.change(&c)
		err := c.Check()
		if (err == nil) != (tc.says == nil) {
			t.Errorf("%s: %v", name, err)
		}
		for _, part := range tc.says {
			if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v: lacks %q", name, err, part)
			}
		}
	}
}
