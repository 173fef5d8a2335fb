package rotations

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// place is where signers run: the control plane's host, or this machine.
type place struct {
	t     *testing.T
	dir   string
	start func(process.Program) (*process.Process, error)
	dial  probe.Dial
}

// signers are the kinds, each with what starts the real program and returns the file that chooses it. Two are missing:
// istiod signs no DNS names, by which Istio's agents verify xds-servers, and Kubernetes no certificate of less than ten
// minutes.
var signers = []struct {
	name string
	file func(place) string
}{
	{"an intermediate below a root of the ca's own", place.selfSigned},
	{"the files of cacerts", place.caCerts},
	{"samples/external-signer", place.external},
	{"step-ca", place.stepCA},
	{"an intermediate of Vault", func(p place) string { return p.vault(false) }},
	{"a token of SoftHSM", place.softHSM},
	{"leaves of Vault", func(p place) string { return p.vault(true) }},
	{"an intermediate below another root of the ca's own", place.selfSigned},
}

const header = "apiVersion: ca.fairlead.dev/v1\nkind: Signer\n"

// fresh is a new directory.
func (p place) fresh(name string) string {
	p.t.Helper()
	dir, err := os.MkdirTemp(p.dir, name+"-")
	testkit.NoError(p.t, err)
	return dir
}

// run starts a program that ends with the test, and waits until the condition holds.
func (p place) run(program process.Program, ready func() error) {
	p.t.Helper()
	started, err := p.start(program)
	testkit.NoError(p.t, err)
	p.t.Cleanup(started.Kill)
	testkit.NoError(p.t, started.Until(p.t.Context(), time.Minute, ready))
}

// listens is the condition that somebody listens there.
func (p place) listens(address string) func() error {
	return func() error {
		conn, err := p.connect(address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

func (p place) connect(address string) (io.Closer, error) {
	if p.dial != nil {
		return p.dial(p.t.Context(), "tcp4", address)
	}
	return dialer.DialContext(p.t.Context(), "tcp4", address)
}

func (p place) selfSigned() string {
	return header + "name: own\nintermediate:\n  keys: {directory: {dir: " + p.fresh("keys") + "/keys}}\n  selfSigned: {}\n"
}

func (p place) softHSM() string {
	const module = "/usr/lib/softhsm/libsofthsm2.so"
	helper, err := filepath.Abs(filepath.Join(os.Getenv("BIN_DIR"), "ca-kms"))
	testkit.NoError(p.t, err)
	for _, need := range []string{module, helper} {
		if _, err := os.Stat(need); err != nil {
			p.t.Skipf("%v: run `make kms`, and install Debian's softhsm2", err)
		}
	}
	dir := p.fresh("hsm")
	file := func(name string) string { return filepath.Join(dir, name) }
	testkit.NoError(p.t, os.Mkdir(file("tokens"), 0o700))
	testkit.WriteFile(p.t, file("softhsm2.conf"), []byte("directories.tokendir = "+file("tokens")+"\nobjectstore.backend = file\n"))
	testkit.WriteFile(p.t, file("pin"), []byte("31415926\n"))
	// The ca's helper is a process of the ca's, which has this environment because it is started after.
	process.MustDo(p.t, command("env", "SOFTHSM2_CONF="+file("softhsm2.conf"), "softhsm2-util", "--init-token", "--free", "--label", "mesh",
		"--pin", "31415926", "--so-pin", "999999"))
	wrapper := "#!/bin/sh\nexport SOFTHSM2_CONF=" + file("softhsm2.conf") + "\nexec " + helper + ` "$@"` + "\n"
	testkit.NoError(p.t, os.WriteFile(file("ca-kms"), []byte(wrapper), 0o700))
	return header + fmt.Sprintf("name: hsm\nintermediate:\n  keys: {kms: {type: pkcs11, uri: 'pkcs11:token=mesh', module: %s, pinFile: %s, "+
		"helper: %s}}\n  selfSigned: {}\n", module, file("pin"), file("ca-kms"))
}

// authority is a root with an intermediate below it.
type authority struct {
	root, intermediate *x509.Certificate
	key                *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	var a authority
	sign := func(name string, parent *x509.Certificate, with *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		testkit.NoError(t, err)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
			NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		}
		if parent == nil {
			parent, with = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), with)
		testkit.NoError(t, err)
		return testkit.Must(x509.ParseCertificate(der))(t), key
	}
	root, key := sign("root of "+name, nil, nil)
	a.root = root
	a.intermediate, a.key = sign("intermediate of "+name, root, key)
	return a
}

// caCerts writes the files as Istio's users do.
func (p place) caCerts() string {
	dir, a := p.fresh("cacerts"), newAuthority(p.t, "cacerts")
	root, intermediate := testkit.CertPEM(a.root), testkit.CertPEM(a.intermediate)
	for name, text := range map[string][]byte{
		"ca-cert.pem": intermediate, "ca-key.pem": testkit.KeyPEM(p.t, a.key), "root-cert.pem": root,
		"cert-chain.pem": append(bytes.Clone(intermediate), root...),
	} {
		testkit.NoError(p.t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return header + "name: cacerts\ncaCerts: {directory: " + dir + "}\n"
}

func command(args ...string) *exec.Cmd { return exec.Command(args[0], args[1:]...) }

// external runs the sample, with the files that its README makes.
func (p place) external() string {
	const address = "127.0.0.1:15443"
	set, err := binaries.Find(p.t.Context(), p.dir)
	testkit.NoError(p.t, err)
	bin, err := set.Provide(p.t.Context(), p.dir, "external-signer", "fairlead.dev/samples/external-signer")
	testkit.NoError(p.t, err)
	files := filepath.Join(p.fresh("external"), "files")
	process.MustDo(p.t, command("../../../samples/external-signer/make-files.sh", files, "signer.example"))
	log := filepath.Join(p.dir, "logs", "external-signer.log")
	p.run(process.Program{Name: "external-signer", Path: bin, Args: []string{"-listen", address, "-dir", files}, Stdout: log, Stderr: log},
		p.listens(address))
	return header + fmt.Sprintf("name: external\nservice: {address: %[2]q, serverName: signer.example, caFile: %[1]s/client-ca.pem, "+
		"certFile: %[1]s/client.pem, keyFile: %[1]s/client-key.pem}\n", files, address)
}

// stepCA runs a real one, with a provisioner for the ca.
func (p place) stepCA() string {
	bin := program(p.t, "STEPCA_BIN", "step-ca")
	const address = "127.0.0.1:19000"
	dir, a := p.fresh("step"), newAuthority(p.t, "step-ca")
	file := func(name string) string { return filepath.Join(dir, name) }
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(p.t, err)
	jwk := jose.JSONWebKey{Key: key, Algorithm: string(jose.ES256), Use: "sig"}
	sum, err := jwk.Thumbprint(crypto.SHA256)
	testkit.NoError(p.t, err)
	jwk.KeyID = base64.RawURLEncoding.EncodeToString(sum)
	const template = `{"subject": {}, "sans": {{ toJson .SANs }}, "keyUsage": ["digitalSignature"],
		"extKeyUsage": ["serverAuth", "clientAuth"], "extensions": {{ toJson .Token.extensions }}}`
	config := testkit.Must(json.Marshal(map[string]any{
		"root": file("root.pem"), "crt": file("intermediate.pem"), "key": file("intermediate.key"), "address": address,
		"dnsNames": []string{"127.0.0.1"}, "logger": map[string]any{"format": "text"},
		"db": map[string]any{"type": "badgerv2", "dataSource": file("db")},
		"authority": map[string]any{"provisioners": []any{map[string]any{
			"type": "JWK", "name": "fairlead", "key": jwk.Public(), "options": map[string]any{"x509": map[string]any{"template": template}},
			"claims": map[string]any{"minTLSCertDuration": "5s", "maxTLSCertDuration": "24h", "defaultTLSCertDuration": "1h"},
		}}},
	}))(p.t)
	for name, text := range map[string][]byte{
		"root.pem": testkit.CertPEM(a.root), "intermediate.pem": testkit.CertPEM(a.intermediate), "intermediate.key": testkit.KeyPEM(p.t, a.key),
		"provisioner.jwk": testkit.Must(json.Marshal(jwk))(p.t), "ca.json": config,
	} {
		testkit.NoError(p.t, os.WriteFile(file(name), text, 0o600))
	}
	log := filepath.Join(p.dir, "logs", "step-ca.log")
	p.run(process.Program{
		Name: "step-ca", Path: bin, Args: []string{file("ca.json")}, Env: []string{"STEPPATH=" + dir}, Stdout: log, Stderr: log,
	}, p.listens(address))
	fingerprint := sha256.Sum256(a.root.Raw)
	return header + fmt.Sprintf("name: step\nstepCA: {url: 'https://%s', fingerprints: [%q], provisioner: fairlead, jwk: {keyFile: %s}, "+
		"extensions: true}\n", address, hex.EncodeToString(fingerprint[:]), file("provisioner.jwk"))
}

// vault runs a real one for an intermediate of the ca, or for leaves.
func (p place) vault(leaves bool) string {
	bin := program(p.t, "VAULT_BIN", "vault")
	address := "127.0.0.1:18200"
	if leaves {
		address = "127.0.0.1:18210"
	}
	dir := p.fresh("vault")
	log := filepath.Join(p.dir, "logs", filepath.Base(dir)+".log")
	client := probe.Client(p.dial)
	p.run(process.Program{
		Name: "vault", Path: bin, Env: []string{"HOME=" + dir}, Stdout: log, Stderr: log,
		Args: []string{"server", "-dev", "-dev-tls", "-dev-tls-cert-dir=" + dir, "-dev-root-token-id=root", "-dev-listen-address=" + address},
	}, func() error {
		if transport, ok := client.Transport.(*http.Transport); ok {
			transport.TLSClientConfig = roots(filepath.Join(dir, "vault-ca.pem"))
		}
		return p.ask(client, "https://"+address+"/v1/sys/mounts/pki-"+"test", map[string]any{"type": "pki",
			"config": map[string]any{"max_lease_ttl": "87600h"}})
	})
	for path, body := range map[string]any{
		"pki-test/root/generate/internal": map[string]any{"common_name": filepath.Base(dir), "key_type": "ec", "key_bits": 256, "ttl": "8760h"},
		"pki-test/roles/mesh": map[string]any{
			"allowed_uri_sans": "spiffe://cluster.local/*", "use_csr_sans": false, "use_csr_common_name": false, "require_cn": false,
			"key_type": "any", "key_usage": "DigitalSignature", "max_ttl": "24h", "no_store": true, "allow_ip_sans": true,
			"allowed_domains": "istio-system.svc", "allow_subdomains": true,
		},
	} {
		testkit.NoError(p.t, p.ask(client, "https://"+address+"/v1/"+path, body))
	}
	token := filepath.Join(dir, "token")
	testkit.NoError(p.t, os.WriteFile(token, []byte("root\n"), 0o600))
	at := fmt.Sprintf("{address: 'https://%s', caFile: %s/vault-ca.pem, mount: pki-test, auth: {token: {file: %s}}", address, dir, token)
	if leaves {
		return header + "name: vault-leaves\nvault: " + at + ", role: mesh}\n"
	}
	return header + "name: vault\nintermediate:\n  keys: {directory: {dir: " + dir + "/keys}}\n  vault: " + at + "}\n"
}

// ask writes to Vault.
func (p place) ask(client *http.Client, url string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("X-Vault-Token", "root")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode/100 != 2 {
		return errors.Join(err, fmt.Errorf("%s: %s: %s", url, resp.Status, answer))
	}
	return nil
}
