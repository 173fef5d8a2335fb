package vault

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"fairlead.dev/pkg/testkit"
)

// server is a real Vault, whose storage is a directory so that it can be stopped and sealed.
type server struct {
	dir     string
	address string
	caFile  string
	// listener signs server and client certificates.
	listener *testkit.CA
	root     *api.Client
	// token is the root token, key the one that unseals.
	token, key string
	process    *exec.Cmd
	log        *testkit.Buffer
}

// TestMain stops the Vault that tests share.
func TestMain(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		shared.server.stop()
		os.RemoveAll(shared.server.dir)
	}
	os.Exit(code)
}

var shared struct {
	sync.Mutex
	server *server
}

// vaultBinary is Vault's program; without it the test is skipped.
func vaultBinary(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("VAULT_BIN")
	if dir == "" {
		t.Skip("VAULT_BIN is not set; run VAULT_BIN=$(tools/build-cached.sh vault) go test ./internal/signer/vault")
	}
	return filepath.Join(dir, "vault")
}

// sharedServer is the one of tests that neither stop nor seal it. Each makes PKI engines and logins of its own.
func sharedServer(t testing.TB) *server {
	t.Helper()
	binary := vaultBinary(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		shared.server = startServer(t, binary)
	}
	return shared.server
}

// ownServer is one that the test may stop and seal.
func ownServer(t testing.TB) *server {
	t.Helper()
	s := startServer(t, vaultBinary(t))
	t.Cleanup(func() {
		s.stop()
		os.RemoveAll(s.dir)
	})
	return s
}

func startServer(t testing.TB, binary string) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "vault-")
	testkit.NoError(t, err)
	listener := testkit.PKI(t)
	s := &server{
		dir: dir, address: testkit.FreeAddress(t).String(), listener: listener, caFile: listener.WriteRoot(dir), log: &testkit.Buffer{},
	}
	chain, key := listener.NewServer(serverName)
	testkit.WriteFile(t, filepath.Join(dir, "cert.pem"), chain)
	testkit.WriteFile(t, filepath.Join(dir, "key.pem"), key)
	testkit.WriteFile(t, filepath.Join(dir, "config.hcl"), fmt.Appendf(nil, `
storage "file" { path = "%[1]s/data" }
listener "tcp" {
  address = "%[2]s"
  tls_cert_file = "%[1]s/cert.pem"
  tls_key_file = "%[1]s/key.pem"
  x_forwarded_for_authorized_addrs = []
}
api_addr = "https://%[2]s"
disable_mlock = true
log_level = "warn"
`, dir, s.address))
	s.start(t, binary)
	if s.root, err = newClient(s.config(), newTransport(s.config(), true)); err != nil {
		t.Fatal(err)
	}
	var made *api.InitResponse
	s.retry(t, func(ctx context.Context) error {
		made, err = s.root.Sys().InitWithContext(ctx, &api.InitRequest{SecretShares: 1, SecretThreshold: 1})
		return err
	})
	s.token, s.key = made.RootToken, made.Keys[0]
	s.root.SetToken(s.token)
	s.unseal(t)
	return s
}

// config has no login.
func (s *server) config() *Config {
	return &Config{Address: "https://" + s.address, CAFile: s.caFile, ServerName: serverName}
}

func (s *server) start(t testing.TB, binary string) {
	t.Helper()
	s.process = exec.Command(binary, "server", "-config="+filepath.Join(s.dir, "config.hcl"))
	s.process.Stdout, s.process.Stderr = s.log, s.log
	testkit.NoError(t, s.process.Start())
}

func (s *server) stop() {
	if s.process != nil {
		_ = s.process.Process.Kill()
		_ = s.process.Wait()
		s.process = nil
	}
}

// retry calls f until Vault answers as it should.
func (s *server) retry(t testing.TB, f func(context.Context) error) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := f(ctx); err != nil {
			return fmt.Errorf("%w; Vault's log: %s", err, s.log)
		}
		return nil
	})
}

func (s *server) unseal(t testing.TB) {
	t.Helper()
	s.retry(t, func(ctx context.Context) error {
		status, err := s.root.Sys().UnsealWithContext(ctx, s.key)
		if err == nil && status.Sealed {
			err = errors.New("still sealed")
		}
		return err
	})
	s.retry(t, func(ctx context.Context) error {
		health, err := s.root.Sys().HealthWithContext(ctx)
		if err == nil && (health.Sealed || health.Standby) {
			err = errors.New("not active")
		}
		return err
	})
}

// write writes to a path as root.
func (s *server) write(t testing.TB, path string, body map[string]any) map[string]any {
	t.Helper()
	answer, err := s.root.Logical().WriteWithContext(context.Background(), path, body)
	if err != nil {
		t.Fatalf("write %s: %v", path, err)
	}
	if answer == nil {
		return nil
	}
	return answer.Data
}

// pki makes a PKI engine whose default issuer is a new root with a key of the kind: rsa or ec.
func (s *server) pki(t testing.TB, kind string) (mount string, root *x509.Certificate) {
	t.Helper()
	mount = s.engine(t)
	bits := map[string]int{"rsa": 2048, "ec": 256}[kind]
	made := s.write(t, mount+"/root/generate/internal", map[string]any{
		"common_name": "root " + mount, "key_type": kind, "key_bits": bits, "ttl": "8760h", "issuer_name": "first",
	})
	return mount, parse(t, made["certificate"])
}

// engine mounts a PKI engine without an issuer.
func (s *server) engine(t testing.TB) (mount string) {
	t.Helper()
	mount = "pki-" + unique()
	testkit.NoError(t, s.root.Sys().Mount(mount, &api.MountInput{Type: "pki", Config: api.MountConfigInput{MaxLeaseTTL: "87600h"}}))
	return mount
}

// intermediate makes a PKI engine whose default issuer is signed by the root of another; it knows the whole chain.
func (s *server) intermediate(t testing.TB, kind, above string) (mount string, issuer *x509.Certificate) {
	t.Helper()
	mount = s.engine(t)
	issuer = s.newIntermediate(t, kind, mount, above)
	return mount, issuer
}

func (s *server) newIntermediate(t testing.TB, kind, mount, above string) *x509.Certificate {
	t.Helper()
	bits := map[string]int{"rsa": 2048, "ec": 256}[kind]
	asked := s.write(t, mount+"/intermediate/generate/internal", map[string]any{
		"common_name": "intermediate " + unique(), "key_type": kind, "key_bits": bits})
	made := s.write(t, above+"/root/sign-intermediate", map[string]any{
		"csr": asked["csr"], "use_csr_values": true, "ttl": "4380h", "max_path_length": 1})
	set := s.write(t, mount+"/intermediate/set-signed", map[string]any{
		"certificate": made["certificate"].(string) + "\n" + made["issuing_ca"].(string)})
	issuer := parse(t, made["certificate"])
	for _, id := range set["imported_issuers"].([]any) {
		read, err := s.root.Logical().ReadWithContext(context.Background(), mount+"/issuer/"+id.(string))
		testkit.NoError(t, err)
		if parse(t, read.Data["certificate"]).Equal(issuer) {
			s.write(t, mount+"/config/issuers", map[string]any{"default": id})
		}
	}
	return issuer
}

// role writes the role mesh as the documentation says, with changes.
func (s *server) role(t testing.TB, mount string, changes map[string]any) {
	t.Helper()
	body := map[string]any{
		"allowed_uri_sans": "spiffe://" + testkit.TrustDomain + "/*", "use_csr_sans": false, "use_csr_common_name": false, "require_cn": false,
		"key_type": "any", "key_usage": "DigitalSignature", "max_ttl": "48h", "no_store": true,
		"allow_ip_sans": true, "allowed_domains": "istio-system.svc", "allow_subdomains": true,
	}
	for k, v := range changes {
		body[k] = v
	}
	s.write(t, mount+"/roles/mesh", body)
}

// policy writes a policy that allows what the ca needs of a mount, and returns its name.
func (s *server) policy(t testing.TB, mount string) string {
	t.Helper()
	name := "ca-" + unique()
	testkit.NoError(t, s.root.Sys().PutPolicy(name, fmt.Sprintf(`
path "%[1]s/issuer/+/sign/mesh" { capabilities = ["update"] }
path "%[1]s/issuer/+/sign-intermediate" { capabilities = ["update"] }
path "%[1]s/roles/mesh" { capabilities = ["read"] }
`, mount)))
	return name
}

// newToken makes a token, and a configuration that uses it.
func (s *server) newToken(t testing.TB, mount string, r api.TokenCreateRequest) (cfg Config, token string) {
	t.Helper()
	if r.Policies == nil {
		r.Policies = []string{s.policy(t, mount)}
	}
	made, err := s.root.Auth().Token().CreateWithContext(context.Background(), &r)
	testkit.NoError(t, err)
	token = made.Auth.ClientToken
	file := filepath.Join(t.(interface{ TempDir() string }).TempDir(), "token")
	testkit.WriteFile(t, file, []byte(token+"\n"))
	cfg = *s.config()
	cfg.Mount, cfg.Role, cfg.Auth = mount, "mesh", Auth{Token: &TokenAuth{File: file}}
	cfg.RefreshInterval.Duration = time.Second
	cfg.Timeout.Duration = 30 * time.Second
	return cfg, token
}

var names struct {
	sync.Mutex
	n int
}

func unique() string {
	names.Lock()
	defer names.Unlock()
	names.n++
	return fmt.Sprint(names.n)
}

func parse(t testing.TB, text any) *x509.Certificate {
	t.Helper()
	cert, err := certificate("certificate", strings.TrimSpace(text.(string)))
	testkit.NoError(t, err)
	return cert
}
