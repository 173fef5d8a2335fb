package vault

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer"
)

const (
	// serverName is that of Vault's certificate in tests.
	serverName = "vault.test"
	// token that the fake takes, and the secret id for which it gives it.
	goodToken, goodSecret = "hvs.the-token-of-the-ca", "the-secret-id-of-the-ca"
)

var domain = spiffeid.RequireTrustDomainFromString(testkit.TrustDomain)

// fake is a stand-in for Vault that says what a test wants it to.
type fake struct {
	*httptest.Server
	t      testing.TB
	caFile string
	root   *testkit.CA

	mu sync.Mutex
	// answers by "METHOD path" replace those of the fake itself.
	answers map[string]http.HandlerFunc
	counts  map[string]int
}

func newFake(t testing.TB) *fake {
	t.Helper()
	listener := testkit.PKI(t)
	f := &fake{
		t: t, caFile: listener.WriteRoot(t.TempDir()), root: testkit.PKI(t), answers: map[string]http.HandlerFunc{}, counts: map[string]int{},
	}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	pair, err := tls.X509KeyPair(listener.NewServer(serverName))
	testkit.NoError(t, err)
	f.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	f.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

// on makes the fake answer a path below /v1/ so.
func (f *fake) on(path string, h http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[path] = h
}

func (f *fake) count(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[path]
}

func say(status int, body any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		if text, ok := body.(string); ok {
			_, _ = io.WriteString(w, text)
			return
		}
		_ = json.NewEncoder(w).Encode(body)
	}
}

func refuse(status int, says ...string) http.HandlerFunc {
	return say(status, map[string]any{"errors": says})
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	f.mu.Lock()
	f.counts[path]++
	h := f.answers[path]
	f.mu.Unlock()
	if h == nil {
		h = f.own(path)
	}
	h(w, r)
}

// own are the answers of a Vault without faults.
func (f *fake) own(path string) http.HandlerFunc {
	data := func(d map[string]any) http.HandlerFunc { return say(200, map[string]any{"data": d}) }
	rootPEM := string(f.root.RootPEM)
	switch path {
	case "auth/approle/login":
		return func(w http.ResponseWriter, r *http.Request) {
			var body map[string]string
			if json.NewDecoder(r.Body).Decode(&body) != nil || body["secret_id"] != goodSecret {
				refuse(400, "invalid role or secret ID")(w, r)
				return
			}
			f.grant(3600, true)(w, r)
		}
	case "auth/token/renew-self":
		return f.authenticated(f.grant(3600, true))
	case "auth/token/lookup-self":
		return f.authenticated(data(map[string]any{"ttl": 3600, "renewable": true}))
	case "pki/issuer/default/json":
		return data(map[string]any{"certificate": rootPEM, "ca_chain": []string{rootPEM}})
	case "pki/issuer/default/crl":
		return data(map[string]any{"crl": string(f.root.Revoke())})
	case "pki/roles/mesh":
		return f.authenticated(data(goodRole()))
	case "pki/issuer/default/sign/mesh":
		return f.authenticated(func(w http.ResponseWriter, r *http.Request) { data(f.sign(r, nil))(w, r) })
	}
	return refuse(404)
}

func goodRole() map[string]any {
	return map[string]any{
		"allowed_uri_sans": []string{"spiffe://cluster.local/*"}, "use_csr_sans": false, "use_csr_common_name": false, "require_cn": false,
		"key_type": "any", "server_flag": true, "client_flag": true, "key_usage": []string{"DigitalSignature"}, "max_ttl": 48 * 3600,
	}
}

func (f *fake) grant(ttl int, renewable bool) http.HandlerFunc {
	return say(200, map[string]any{"auth": map[string]any{"client_token": goodToken, "lease_duration": ttl, "renewable": renewable}})
}

func (f *fake) authenticated(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Vault-Token") != goodToken {
			refuse(403, "2 errors occurred:\n\t* permission denied\n\t* invalid token\n\n")(w, r)
			return
		}
		h(w, r)
	}
}

// sign makes the leaf that the request asks for.
func (f *fake) sign(r *http.Request, change func(*x509.Certificate)) map[string]any {
	var body struct {
		CSR      string   `json:"csr"`
		URIs     []string `json:"uri_sans"`
		NotAfter string   `json:"not_after"`
		TTL      string   `json:"ttl"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		f.t.Errorf("the request cannot be read: %v", err)
		return nil
	}
	block, _ := pem.Decode([]byte(body.CSR))
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		f.t.Errorf("the CSR cannot be read: %v", err)
		return nil
	}
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	leaf := &x509.Certificate{
		SerialNumber: serial.SetBit(serial, 119, 1), NotBefore: time.Now().Add(-30 * time.Second), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, text := range body.URIs {
		u, _ := url.Parse(text)
		leaf.URIs = append(leaf.URIs, u)
	}
	leaf.NotAfter, _ = time.Parse(time.RFC3339, body.NotAfter)
	if ttl, err := time.ParseDuration(body.TTL); err == nil {
		leaf.NotAfter = time.Now().Add(ttl)
	}
	if change != nil {
		change(leaf)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, f.root.Cert, csr.PublicKey, f.root.Key)
	if err != nil {
		f.t.Errorf("sign: %v", err)
		return nil
	}
	root := base64.StdEncoding.EncodeToString(f.root.Cert.Raw)
	return map[string]any{"certificate": base64.StdEncoding.EncodeToString(der), "issuing_ca": root, "ca_chain": []string{root}}
}

// config logs in to the fake by AppRole.
func (f *fake) config() Config {
	dir := f.t.(interface{ TempDir() string }).TempDir()
	role, secret := filepath.Join(dir, "role-id"), filepath.Join(dir, "secret-id")
	testkit.WriteFile(f.t, role, []byte("the-role-id-of-the-ca\n"))
	testkit.WriteFile(f.t, secret, []byte(goodSecret+"\n"))
	return Config{Address: f.URL, CAFile: f.caFile, ServerName: serverName, Role: "mesh",
		Auth: Auth{AppRole: &AppRoleAuth{RoleIDFile: role, SecretIDFile: secret}}}
}

func deps(t testing.TB) signer.Deps {
	return signer.Deps{TrustDomain: domain, Clock: clock.Real(), Log: testkit.Logger(t)}
}

func newTestIssuer(t testing.TB, cfg Config, d signer.Deps) *Issuer {
	t.Helper()
	i, err := NewIssuer(cfg, d)
	testkit.NoError(t, err)
	return i
}

// request asks for a leaf of an hour.
func request(t testing.TB) *signer.Request { return requestFor(t, catest.Key(t), time.Hour) }

func requestFor(t testing.TB, key *ecdsa.PrivateKey, ttl time.Duration) *signer.Request {
	t.Helper()
	id := spiffeid.RequireFromPath(domain, "/ns/shop/sa/cart")
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{"the subject is ignored"}}, URIs: []*url.URL{id.URL()},
	}, key)
	testkit.NoError(t, err)
	now := time.Now()
	return &signer.Request{CSR: csr, Identity: id, Template: &x509.Certificate{
		PublicKey: &key.PublicKey, URIs: []*url.URL{id.URL()}, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(ttl).Truncate(time.Second),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}}
}

// wantFault fails unless err is an *signer.Error with the fault and all of the texts.
func wantFault(t testing.TB, err error, fault signer.Fault, says ...string) {
	t.Helper()
	known, ok := err.(*signer.Error) //nolint:errorlint // the interface promises the type itself
	if !ok || known.Fault != fault {
		t.Errorf("got %T %v, want a *signer.Error with fault %d", err, err, fault)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("got %q, want %q in it", err, s)
		}
	}
	wantNoSecret(t, err.Error())
}

func wantNoSecret(t testing.TB, text string) {
	t.Helper()
	for _, s := range []string{goodToken, goodSecret} {
		if strings.Contains(text, s) {
			t.Errorf("%q shows a secret", text)
		}
	}
}

// issueAndCheck issues and has package signer check the answer, as package guard does.
func issueAndCheck(ctx context.Context, i *Issuer, r *signer.Request, roots ...*x509.Certificate) error {
	chain, err := i.Issue(ctx, r)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	for _, c := range roots {
		pool.AddCert(c)
	}
	if bad := signer.Check(r, i.Capabilities(), chain, pool, time.Now()); bad != nil {
		return bad
	}
	return nil
}
