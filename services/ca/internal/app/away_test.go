package app

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/proto/fairlead/contract"
)

// devVault is a real Vault that keeps everything in memory, and can be sealed.
type devVault struct {
	t       *testing.T
	address string
	key     string // that unseals
	dir     string
}

func startVault(t *testing.T) *devVault {
	t.Helper()
	bin := os.Getenv("VAULT_BIN")
	if bin == "" {
		t.Skip("VAULT_BIN is not set; run `make signers`")
	}
	v := &devVault{t: t, address: testkit.FreeAddress(t).String(), dir: t.TempDir()}
	log := &testkit.Buffer{}
	cmd := exec.Command(filepath.Join(bin, "vault"), "server", "-dev", "-dev-tls", "-dev-tls-cert-dir="+v.dir, "-dev-no-store-token", "-dev-root-token-id=root",
		"-dev-listen-address="+v.address)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), "HOME="+v.dir)
	testkit.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	unseals := regexp.MustCompile(`Unseal Key: (\S+)`)
	testkit.Eventually(t, testkit.Patience, func() error {
		found := unseals.FindStringSubmatch(log.String())
		if found == nil {
			return fmt.Errorf("vault does not run: %s", log)
		}
		v.key = found[1]
		return v.put("sys/mounts/pki", map[string]any{"type": "pki", "config": map[string]any{"max_lease_ttl": "87600h"}})
	})
	for path, body := range map[string]map[string]any{
		"pki/root/generate/internal": {"common_name": "root", "key_type": "ec", "key_bits": 256, "ttl": "8760h"},
		"pki/roles/mesh": {
			"allowed_uri_sans": "spiffe://" + testkit.TrustDomain + "/*", "use_csr_sans": false, "use_csr_common_name": false, "require_cn": false,
			"key_type": "any", "key_usage": "DigitalSignature", "max_ttl": "24h", "no_store": true, "allowed_domains": "istio-system.svc",
			"allow_subdomains": true,
		},
	} {
		testkit.NoError(t, v.put(path, body))
	}
	testkit.WriteFile(t, filepath.Join(v.dir, "token"), []byte("root\n"))
	return v
}

func (v *devVault) put(path string, body map[string]any) error {
	v.t.Helper()
	text := testkit.Must(json.Marshal(body))(v.t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(testkit.Must(os.ReadFile(filepath.Join(v.dir, "vault-ca.pem")))(v.t))
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}}
	defer client.CloseIdleConnections()
	url := "https://" + v.address + "/v1/" + path
	req := testkit.Must(http.NewRequestWithContext(v.t.Context(), http.MethodPut, url, bytes.NewReader(text)))(v.t)
	req.Header.Set("X-Vault-Token", "root")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s", path, res.Status)
	}
	return nil
}

func (v *devVault) seal()   { testkit.NoError(v.t, v.put("sys/seal", nil)) }
func (v *devVault) unseal() { testkit.NoError(v.t, v.put("sys/unseal", map[string]any{"key": v.key})) }

// signer is the part of a signer file that says where Vault is.
func (v *devVault) signer() string {
	return fmt.Sprintf("vault: {address: 'https://%s', caFile: %[2]s/vault-ca.pem, mount: pki, auth: {token: {file: %[2]s/token}}",
		v.address, v.dir)
}

const signerHeader = "apiVersion: ca.fairlead.dev/v1\nkind: Signer\nname: away\n"

// swap orders a swap.
func (h *harness) swap(file string) {
	h.t.Helper()
	if code, problem := h.order(caapi.Command{Action: caapi.Swap, File: signerHeader + file}); code != http.StatusOK {
		h.t.Fatalf("%d: %s", code, problem)
	}
}

// names waits until a rotation that stands at a step says why, by its status.
func (h *harness) names(step, why string) {
	h.t.Helper()
	testkit.Eventually(h.t, testkit.Patience, func() error {
		s := h.status()
		said := strings.Join(append(s.Waits, s.Problems...), "; ")
		for _, of := range s.Signers {
			said += "; " + of.Problem
		}
		if s.Step != step || !strings.Contains(said, why) {
			return fmt.Errorf("step %s says %q, want %s and %q", s.Step, said, step, why)
		}
		return nil
	})
}

// Vault signs the intermediate alone: what is sealed after that stops neither the rotation nor a request.
func TestVaultIsSealedWhileAnIntermediateOfItComes(t *testing.T) {
	t.Parallel()
	v := startVault(t)
	h := start(t, nil)
	w := &workload{h: h, roots: h.roots()}
	w.renew()
	v.seal()
	h.swap("intermediate:\n  keys: {directory: {dir: " + t.TempDir() + "/keys}}\n  " + v.signer() + "}\n")
	h.names("prepare", "sealed")
	w.renew()
	v.unseal()
	h.reaches("gate", 1)
	v.seal()
	w.renew()
	h.reaches("renew", 1)
	w.renew()
	h.reaches("idle", 0)
	testkit.NoError(t, w.calls())
	w.renew()
}

// Vault signs each leaf: the gate does not pass while it is sealed, and what is refused after it is refused for as long
// as it is.
func TestVaultIsSealedWhileItsLeavesCome(t *testing.T) {
	t.Parallel()
	v := startVault(t)
	h := start(t, nil)
	comesAndGoes(t, h, v.signer()+", role: mesh}\n", "sealed", v.seal, v.unseal)
}

// comesAndGoes swaps to a signer that must be there for each leaf, and is away for a time at the gate and at renew.
func comesAndGoes(t *testing.T, h *harness, file, why string, goes, comes func()) {
	t.Helper()
	w := &workload{h: h, roots: h.roots(), token: h.issuer.Sign(map[string]any{
		"iss": h.issuer.Name, "aud": []string{contract.TokenAudience}, "sub": "system:serviceaccount:default:reviews",
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
		"kubernetes.io": map[string]any{"namespace": "default", "serviceaccount": map[string]any{"name": "reviews", "uid": "uid-reviews"},
			"pod": map[string]any{"name": "reviews-0", "uid": "uid-reviews-0"}},
	})}
	w.renew()
	h.swap(file)
	h.reaches("gate", 1)
	goes()
	h.names("gate", why) // it is tried every half minute
	w.renew()            // by the signer before, which acknowledges
	h.reaches("gate", 0)
	h.names("gate", why)
	if h.metric("fairlead_ca_rotation_waits", "signer") != 1 {
		t.Error("no metric says that the rotation waits for the signer")
	}
	w.renew()
	comes()
	h.reaches("renew", 1)
	goes()
	if err := w.tryRenew(); status.Code(err) != codes.Unavailable {
		t.Errorf("without the signer: %v", err)
	}
	h.names("renew", why)
	if h.metric("fairlead_ca_requests_refused_total", "signer_away") == 0 {
		t.Error("no metric says that the signer is away")
	}
	testkit.NoError(t, w.calls())
	comes()
	testkit.Eventually(t, testkit.Patience, w.tryRenew)
	h.reaches("idle", 0)
	testkit.NoError(t, w.calls())
}

// The keys are in a token of SoftHSM, whose directory is moved away.
func TestTheTokenIsRemovedWhileItsLeavesCome(t *testing.T) {
	t.Parallel()
	const module = "/usr/lib/softhsm/libsofthsm2.so"
	helper := filepath.Join(os.Getenv("BIN_DIR"), "ca-kms")
	for _, need := range []string{module, helper} {
		if _, err := os.Stat(need); err != nil {
			t.Skipf("%v: run `make signers`, and install Debian's softhsm2", err)
		}
	}
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	testkit.NoError(t, os.Mkdir(file("tokens"), 0o700))
	testkit.WriteFile(t, file("softhsm2.conf"), []byte("directories.tokendir = "+file("tokens")+"\nobjectstore.backend = file\n"))
	testkit.NoError(t, os.WriteFile(file("pin"), []byte("31415926\n"), 0o600))
	cmd := exec.Command("env", "SOFTHSM2_CONF="+file("softhsm2.conf"), "softhsm2-util", "--init-token", "--free", "--label", "mesh", "--pin", "31415926", "--so-pin", "999999")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wrapper := "#!/bin/sh\nexport SOFTHSM2_CONF=" + file("softhsm2.conf") + "\nexec " + helper + ` "$@"` + "\n"
	testkit.NoError(t, os.WriteFile(file("ca-kms"), []byte(wrapper), 0o700))
	signer := fmt.Sprintf("intermediate:\n  keys: {kms: {type: pkcs11, uri: 'pkcs11:token=mesh', module: %s, pinFile: %s, "+
		"helper: %s}}\n  selfSigned: {}\n", module, file("pin"), file("ca-kms"))
	comesAndGoes(t, start(t, nil), signer, "token",
		func() { testkit.NoError(t, os.Rename(file("tokens"), file("away"))) },
		func() { testkit.NoError(t, os.Rename(file("away"), file("tokens"))) })
}
