// Package chains tests certificates of the ca as others read them: whichever signer in its process signs, the chain
// verifies in Go, in OpenSSL and in Envoy, and zlint finds nothing in leaf, intermediate and root.
package chains

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/controlplane"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// signing is a way to sign in the ca's process.
type signing struct {
	// file is the text of the signer file after its head; empty: there is none, and the ca signs with a root of its
	// own.
	file string
	// also is the one root, in PEM, that other peers have; empty: all have that of the ca.
	also []byte
}

func signers(t *testing.T) map[string]signing {
	t.Helper()
	intermediate := func(algorithm string) signing {
		return signing{file: fmt.Sprintf("intermediate: {keys: {directory: {dir: %s/keys}}, algorithm: %s, selfSigned: {algorithm: %s}}\n",
			t.TempDir(), algorithm, algorithm)}
	}
	return map[string]signing{
		"the root itself":                {},
		"an intermediate, ECDSA P-256":   intermediate("ECDSA-P256"),
		"an intermediate, ECDSA P-384":   intermediate("ECDSA-P384"),
		"an intermediate, RSA":           intermediate("RSA-2048"),
		"plugged-in files, ECDSA":        plugIn(t, ecKey, false),
		"plugged-in files, RSA":          plugIn(t, rsaKey, false),
		"plugged-in files, cross-signed": plugIn(t, ecKey, true),
	}
}

func TestChainsVerify(t *testing.T) {
	bin, err := binaries.Find(t.Context(), t.TempDir())
	testkit.NoError(t, err)
	found := map[string]bool{}
	for name, signing := range signers(t) {
		t.Run(name, func(t *testing.T) {
			p := start(t, bin, signing.file)
			server, client := issue(t, p, "server"), issue(t, p, "client")
			roots, err := os.ReadFile(p.RootFile)
			testkit.NoError(t, err)
			for _, trusted := range [][]byte{roots, signing.also} {
				if len(trusted) > 0 {
					verifyInGo(t, server, trusted)
					verifyByOpenSSL(t, server, trusted)
					verifyInEnvoy(t, bin.Envoy, server, client, trusted)
				}
			}
			for i, der := range server.all {
				judge(t, fmt.Sprintf("certificate %d of the chain", i), der, found)
			}
		})
	}
	for name := range exceptions {
		if !found[name] && !t.Failed() {
			t.Errorf("zlint no longer reports %s: remove the exception", name)
		}
	}
}

const serverName = "ca.test"

// start runs a ca with a signer.
func start(t *testing.T, bin binaries.Set, signer string) *controlplane.Plane {
	t.Helper()
	dir := t.TempDir()
	p, err := controlplane.New(controlplane.Config{
		Dir: dir, Binaries: bin, Start: func(p process.Program) (*process.Process, error) { return process.Start(p, nil) },
		CAPorts: controlplane.Ports{GRPC: testkit.FreeAddress(t).String(), Ops: testkit.FreeAddress(t).String()},
	})
	testkit.NoError(t, err)
	p.CA.Add("--dns-names", contract.SystemNamespace+"/"+contract.CAAccount+"="+serverName)
	if signer != "" {
		file := filepath.Join(dir, "signer.yaml")
		testkit.WriteFile(t, file, []byte("apiVersion: ca.fairlead.dev/v1\nkind: Signer\nname: test\n"+signer))
		p.CA.Add("--signer-file", file)
	}
	t.Cleanup(func() {
		testkit.NoError(t, p.Stop(testkit.Patience))
		if t.Failed() {
			t.Log(process.Tails(dir + "/logs/*.log"))
		}
	})
	testkit.NoError(t, p.StartCA(t.Context()))
	return p
}

// certificate is what a workload has: what it sends to peers, and all that it got, with the roots.
type certificate struct {
	*tls.Certificate
	leaf *x509.Certificate
	all  [][]byte
}

// issue gets a certificate from the ca, as a workload does.
func issue(t *testing.T, p *controlplane.Plane, account string) certificate {
	t.Helper()
	roots, err := os.ReadFile(p.RootFile)
	testkit.NoError(t, err)
	conn, err := grpc.NewClient(p.CA.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: serverName, RootCAs: pool(roots),
	})))
	testkit.NoError(t, err)
	defer conn.Close()
	token, err := p.Token("default", account, contract.TokenAudience)
	testkit.NoError(t, err)
	request, err := controlplane.NewRequest()
	testkit.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	got, err := request.Send(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), conn, 0)
	testkit.NoError(t, err)
	c := certificate{Certificate: &tls.Certificate{PrivateKey: got.PrivateKey}, all: got.Certificate}
	for i, der := range got.Certificate {
		cert, err := x509.ParseCertificate(der)
		testkit.NoError(t, err)
		if i == 0 {
			c.leaf = cert
		}
		if i == 0 || string(cert.RawIssuer) != string(cert.RawSubject) {
			c.Certificate.Certificate = append(c.Certificate.Certificate, der)
		}
	}
	return c
}

func pool(roots []byte) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	return pool
}

// verifyWith is what a peer in Go does with a chain.
func verifyWith(chain [][]byte, roots []byte) error {
	if len(chain) == 0 {
		return errors.New("no certificate")
	}
	between := x509.NewCertPool()
	var leaf *x509.Certificate
	for _, der := range chain {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		if leaf == nil {
			leaf = c
		}
		between.AddCert(c)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		options := x509.VerifyOptions{Roots: pool(roots), Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}}
		if _, err := leaf.Verify(options); err != nil {
			return err
		}
	}
	return nil
}

func verifyInGo(t *testing.T, c certificate, roots []byte) {
	t.Helper()
	testkit.NoError(t, verifyWith(c.Certificate.Certificate, roots))
	foreign := testkit.CertPEM(testkit.PKI(t).Cert)
	if verifyWith(c.Certificate.Certificate, foreign) == nil {
		t.Error("the chain verifies with another root too")
	}
}

// verifyByOpenSSL verifies as strictly as RFC 5280 is written.
func verifyByOpenSSL(t *testing.T, c certificate, roots []byte) {
	t.Helper()
	dir := t.TempDir()
	file := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		testkit.WriteFile(t, path, text)
		return path
	}
	chain := file("chain.pem", chainPEM(c.Certificate.Certificate[1:]))
	leaf, trusted := file("leaf.pem", chainPEM(c.Certificate.Certificate[:1])), file("roots.pem", roots)
	for _, purpose := range []string{"sslserver", "sslclient"} {
		args := []string{"verify", "-x509_strict", "-purpose", purpose, "-CAfile", trusted}
		if len(c.Certificate.Certificate) > 1 {
			args = append(args, "-untrusted", chain)
		}
		if out, err := exec.CommandContext(t.Context(), "openssl", append(args, leaf)...).CombinedOutput(); err != nil {
			t.Errorf("openssl verify, %s: %v: %s", purpose, err, out)
		}
	}
	foreign := file("foreign.pem", testkit.CertPEM(testkit.PKI(t).Cert))
	openssl := exec.CommandContext(t.Context(), "openssl", "verify", "-CAfile", foreign, "-untrusted", chain, leaf)
	if out, err := openssl.CombinedOutput(); err == nil {
		t.Errorf("OpenSSL verifies it with another root too: %s", out)
	}
}

func chainPEM(ders [][]byte) []byte {
	var out []byte
	for _, der := range ders {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return out
}

// verifyInEnvoy lets an Envoy present the server's chain and verify the client's.
func verifyInEnvoy(t *testing.T, program string, server, client certificate, roots []byte) {
	t.Helper()
	dir := t.TempDir()
	key, err := x509.MarshalPKCS8PrivateKey(server.PrivateKey.(*ecdsa.PrivateKey))
	testkit.NoError(t, err)
	testkit.WriteFile(t, filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	testkit.WriteFile(t, filepath.Join(dir, "chain.pem"), chainPEM(server.Certificate.Certificate))
	testkit.WriteFile(t, filepath.Join(dir, "roots.pem"), roots)
	at, admin := testkit.FreeAddress(t), testkit.FreeAddress(t)
	config := filepath.Join(dir, "envoy.yaml")
	testkit.WriteFile(t, config, fmt.Appendf(nil, envoyConfig, admin.Addr(), admin.Port(), at.Addr(), at.Port(), dir, dir, dir))
	log := filepath.Join(dir, "envoy.log")
	envoy, err := process.Start(process.Program{
		Name: "envoy", Path: program, Args: []string{"-c", config, "--disable-hot-restart", "--concurrency", "1"}, Stdout: log, Stderr: log,
	}, nil)
	testkit.NoError(t, err)
	t.Cleanup(envoy.Kill)
	testkit.NoError(t, envoy.Until(t.Context(), testkit.Patience, func() error {
		return probe.Ready(t.Context(), probe.Client(nil), "http://"+admin.String()+"/ready")
	}))
	get := func(own ...tls.Certificate) error {
		transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: own, InsecureSkipVerify: true, //nolint:gosec // the name is a SPIFFE ID
			VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error { return verifyWith(raw, roots) },
		}}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+at.String()+"/", http.NoBody)
		if err != nil {
			return err
		}
		answer, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "verified" {
			return fmt.Errorf("%q, %w", text, err)
		}
		return nil
	}
	if err := get(*client.Certificate); err != nil {
		t.Errorf("Envoy does not take the client's chain: %v: %s", err, envoy.LogTail())
	}
	foreign, err := testkit.PKI(t).NewSVID("default", "client").Current()
	testkit.NoError(t, err)
	if get() == nil || get(*foreign.Certificate) == nil {
		t.Error("Envoy takes clients without a certificate, or with a foreign one")
	}
}

const envoyConfig = `
admin: {address: {socket_address: {address: %s, port_value: %d}}}
static_resources:
  listeners:
  - address: {socket_address: {address: %s, port_value: %d}}
    filter_chains:
    - transport_socket:
        name: tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            tls_certificates: [{certificate_chain: {filename: "%s/chain.pem"}, private_key: {filename: "%s/key.pem"}}]
            validation_context: {trusted_ca: {filename: "%s/roots.pem"}}
      filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config:
            virtual_hosts:
            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: verified}}}]}
          http_filters:
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`

// names are the findings of zlint in a stable order.
func names(found map[string]string) []string {
	var out []string
	for name, details := range found {
		out = append(out, strings.TrimSpace(name+" "+details))
	}
	slices.Sort(out)
	return out
}
