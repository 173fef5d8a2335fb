package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	security "istio.io/api/security/v1alpha1"

	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/catest"
)

// secrets are marks that must be nowhere, by what they are.
type secrets map[string][]byte

// key adds a private key: its text in PEM, line by line, and its number.
func (s secrets) key(name string, text []byte) {
	block, _ := pem.Decode(text)
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if !strings.HasPrefix(line, "-----") && len(line) > 20 {
			s[fmt.Sprintf("%s, line %d", name, i)] = []byte(line)
		}
	}
	if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		if ec, ok := key.(*ecdsa.PrivateKey); ok {
			number, err := ec.Bytes()
			if err == nil {
				s[name+", the number"] = number
			}
		}
	}
}

// absent reports secrets that a text has, as they are, in hexadecimal or in base64.
func (s secrets) absent(t *testing.T, where, text string) {
	t.Helper()
	for name, secret := range s {
		encoded := base64.StdEncoding.EncodeToString(secret)
		for form, as := range map[string]string{
			"": string(secret), " in hexadecimal": hex.EncodeToString(secret), " in base64": strings.TrimRight(encoded[:len(encoded)-4], "="),
			" in base64 for URLs": strings.TrimRight(base64.RawURLEncoding.EncodeToString(secret), "=")[:len(encoded)-4],
		} {
			if strings.Contains(strings.ToLower(text), strings.ToLower(as)) {
				t.Errorf("%s: has %s%s", where, name, form)
			}
		}
	}
}

// everything that a ca shows: its log at debug level, and each page.
func (h *harness) everything(log *testkit.Buffer) map[string]string {
	out := map[string]string{"log": log.String()}
	admin := h.issuer.Token(contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience)
	for _, path := range []string{
		"/metrics", "/livez", "/readyz", "/readyz?verbose", "/debug", "/debug/", "/debug/bundle", "/debug/issued",
		"/debug/pprof/goroutine?debug=2", "/debug/pprof/cmdline", "/debug/pprof/heap?debug=1",
	} {
		req, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, "http://"+h.server.Addr("ops-address").String()+path, nil)
		testkit.NoError(h.t, err)
		req.Header.Set("Authorization", "Bearer "+admin)
		res, err := http.DefaultClient.Do(req)
		testkit.NoError(h.t, err)
		body, err := io.ReadAll(res.Body)
		testkit.NoError(h.t, err)
		testkit.NoError(h.t, res.Body.Close())
		out[path] = string(body)
	}
	return out
}

// debugging makes a log at debug level.
func debugging() (deps, *testkit.Buffer) {
	log := &testkit.Buffer{}
	lines := slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return deps{Deps: service.Deps{Registry: prometheus.NewRegistry(), Log: lines}}, log
}

// parrot is another CA with Istio's API, which refuses and repeats all that it was sent.
type parrot struct {
	security.UnimplementedIstioCertificateServiceServer
	heard *testkit.Buffer
}

func (p parrot) CreateCertificate(ctx context.Context, r *security.IstioCertificateRequest) (*security.IstioCertificateResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	sent := map[string][]string(md) // which prints tokens, unlike metadata.MD
	_, _ = fmt.Fprintln(p.heard, sent)
	return nil, status.Errorf(codes.PermissionDenied, "I refuse %v with %s", sent, r.GetCsr())
}

// serve serves the parrot until the test ends, and returns the text of the signer file that chooses it.
func (p parrot) serve(t *testing.T) []byte {
	t.Helper()
	pki, listener := testkit.PKI(t), testkit.LoopbackListener(t)
	pair, err := tls.X509KeyPair(pki.NewServer("parrot.test"))
	testkit.NoError(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
	security.RegisterIstioCertificateServiceServer(server, p)
	go func() { _ = server.Serve(listener) }() // Stop ends it
	t.Cleanup(server.Stop)
	return signerText(fmt.Sprintf("istio: {address: %q, serverName: parrot.test, rootsFile: %q}", listener.Addr(), pki.WriteRoot(t.TempDir())))
}

func signerText(kind string) []byte {
	return []byte("apiVersion: ca.fairlead.dev/v1\nkind: Signer\nname: marked\n" + kind + "\n")
}

// Nothing that the ca logs, answers or shows has a key or a token: when it issues, when it refuses, and when what signs
// fails and repeats what it was sent. PINs are tested where they are read, in ca-kms.
func TestSecretsAreNowhere(t *testing.T) {
	const repeats = "another CA that repeats what it was sent"
	var heard testkit.Buffer
	for name, choose := range map[string]func(t *testing.T, o *Options, s secrets) (spoil func()){
		"the root itself": func(t *testing.T, o *Options, s secrets) func() {
			return func() { s.key("the root's key", testkit.Must(os.ReadFile(filepath.Join(o.Dir, "root", "key.pem")))(t)) }
		},
		"keys in a directory": func(t *testing.T, o *Options, s secrets) func() {
			signerFile(t, o)
			dir := filepath.Join(filepath.Dir(o.SignerFile), "keys")
			return func() {
				keys, err := filepath.Glob(filepath.Join(dir, "*.pem"))
				if err != nil || len(keys) < 2 {
					t.Fatalf("keys %q, %v", keys, err)
				}
				for _, file := range keys {
					s.key("key "+filepath.Base(file), testkit.Must(os.ReadFile(file))(t))
				}
			}
		},
		"plugged-in files of which one is then half-written": func(t *testing.T, o *Options, s secrets) func() {
			dir := t.TempDir()
			root := catest.NewCA(t, nil, catest.Key(t))
			issuing := catest.NewCA(t, root, catest.Key(t))
			key := catest.KeyPEM(t, issuing.Key)
			s.key("the plugged-in key", key)
			for name, content := range map[string][]byte{"ca-cert.pem": catest.Certs(issuing), "ca-key.pem": key,
				"root-cert.pem": catest.Certs(root), "cert-chain.pem": catest.Certs(issuing, root)} {
				testkit.WriteFile(t, filepath.Join(dir, name), content)
			}
			o.SignerFile = filepath.Join(t.TempDir(), "signer.yaml")
			testkit.WriteFile(t, o.SignerFile, signerText("caCerts: {directory: "+dir+"}"))
			return func() { testkit.WriteFile(t, filepath.Join(dir, "ca-key.pem"), key[:len(key)*2/3]) }
		},
		repeats: func(t *testing.T, o *Options, _ secrets) func() {
			o.SignerFile = filepath.Join(t.TempDir(), "signer.yaml")
			testkit.WriteFile(t, o.SignerFile, parrot{heard: &heard}.serve(t))
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			marks, issuer := secrets{}, testkit.NewIssuer(t)
			in, log := debugging()
			o := defaults(t, issuer)
			spoil := choose(t, &o, marks)
			h := startIn(t, issuer, o, in)
			bad := "eyJhbGciOiJFUzI1NiJ9.bWFyay1vZi1hLWJhZC10b2tlbg.c2lnbmF0dXJlLW9mLWEtYmFkLXRva2Vu"
			marks["a token that is refused"] = []byte(bad)
			conn := h.dial(nil)
			ask := func(token string, csr string) {
				if _, err := create(as(t.Context(), token), conn, &security.IstioCertificateRequest{Csr: csr}); err != nil {
					marks.absent(t, "the error of a call", fmt.Sprintf("%v %+v", err, status.Convert(err).Proto()))
				}
			}
			csr := catest.CSR(t, catest.Key(t), catest.Names(t, "spiffe://"+testkit.TrustDomain+"/ns/default/sa/reviews"))
			token := h.token("default", "reviews")
			marks["the token of a workload"] = []byte(token)
			spoil()
			ask(token, csr)
			if name == repeats {
				if !strings.Contains(heard.String(), token) {
					t.Errorf("the token was not sent, so that nothing is tested: %s", heard.String())
				}
			} else if h.metric("fairlead_ca_certificates_issued_total", "jwt") != 1 {
				t.Error("nothing was issued")
			}
			ask(bad, csr)
			ask(token, "no request")
			for where, text := range h.everything(log) {
				if text == "" {
					t.Errorf("%s is empty", where)
				}
				marks.absent(t, where, text)
			}
			if name != repeats && len(marks) < 5 || !strings.Contains(log.String(), "DEBUG") || !strings.Contains(log.String(), "audit") {
				t.Errorf("%d marks, and the log is %s", len(marks), log.String())
			}
		})
	}
}

// A Vault that refuses and repeats all that it was sent stops the start, with an error that has none of it.
func TestSecretsOfVaultAreNowhere(t *testing.T) {
	pki := testkit.PKI(t)
	var asked testkit.Buffer
	var requests atomic.Int64
	var give atomic.Pointer[context.CancelFunc]
	vault := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20)) // of the test's own client
		if requests.Add(1)%4 == 0 {
			(*give.Load())() // enough has been sent
		}
		said := fmt.Sprintf("%s %s", r.Header.Get("X-Vault-Token"), bytes.ReplaceAll(body, []byte(`"`), nil))
		_, _ = fmt.Fprintln(&asked, said)
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `{"errors": [%q]}`, said)
	}))
	pair, err := tls.X509KeyPair(pki.NewServer("vault.test"))
	testkit.NoError(t, err)
	vault.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	vault.StartTLS()
	t.Cleanup(vault.Close)
	for name, auth := range map[string]string{
		"token": "token: {file: %[1]s/secret}", "AppRole": "appRole: {roleIDFile: %[1]s/role, secretIDFile: %[1]s/secret}",
	} {
		t.Run(name, func(t *testing.T) {
			dir, mark := t.TempDir(), "hvs.mark-of-a-secret-of-Vault-"+strings.ReplaceAll(name, " ", "-")
			testkit.WriteFile(t, filepath.Join(dir, "secret"), []byte(mark))
			testkit.WriteFile(t, filepath.Join(dir, "role"), []byte("role-of-the-ca"))
			issuer := testkit.NewIssuer(t)
			o := defaults(t, issuer)
			o.SignerFile = filepath.Join(dir, "signer.yaml")
			text := "vault: {address: %q, serverName: vault.test, caFile: %q, role: mesh, auth: {%s}}"
			testkit.WriteFile(t, o.SignerFile, signerText(fmt.Sprintf(text, vault.URL, pki.WriteRoot(dir), fmt.Sprintf(auth, dir))))
			in, log := debugging()
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			give.Store(&cancel)
			_, err := open(ctx, &o, in)
			if err == nil {
				t.Fatal("it starts")
			}
			marks := secrets{"the secret": []byte(mark)}
			marks.absent(t, "the error", err.Error())
			marks.absent(t, "the log", log.String())
			if !strings.Contains(asked.String(), mark) {
				t.Errorf("the secret was not sent, so that nothing is tested: %v", err)
			}
		})
	}
}
