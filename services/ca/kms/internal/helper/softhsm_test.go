//go:build cgo

package helper

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/keys/keystest"
	"fairlead.dev/services/ca/internal/signer/keys/kms"
)

// helperVariable makes the test's own program the helper.
const helperVariable = "CA_KMS_TEST_IS_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" {
		if err := Serve(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const (
	moduleVariable = "SOFTHSM2_MODULE"
	// programVariable names a built ca-kms, which is the helper then.
	programVariable = "CA_KMS_BIN"
	debianModule    = "/usr/lib/softhsm/libsofthsm2.so"
	rightPIN        = "31415926"
	otherPIN        = "27182818"
	wrongPIN        = "16180339"
)

// hsm is a token of SoftHSM of its own.
type hsm struct {
	t           testing.TB
	dir, module string
	clock       *testkit.Clock
	log         *bytes.Buffer
	logMu       sync.Mutex
}

func (h *hsm) Write(p []byte) (int, error) {
	h.logMu.Lock()
	defer h.logMu.Unlock()
	return h.log.Write(p)
}

func newHSM(t testing.TB) *hsm {
	t.Helper()
	module := os.Getenv(moduleVariable)
	if module == "" {
		module = debianModule
	}
	if _, err := os.Stat(module); err != nil {
		t.Skipf("there is no SoftHSM at %s: install Debian's softhsm2 and opensc, or set %s to libsofthsm2.so", module, moduleVariable)
	}
	h := &hsm{t: t, dir: t.TempDir(), module: module, clock: testkit.NewClock(time.Now()), log: &bytes.Buffer{}}
	conf := filepath.Join(h.dir, "softhsm2.conf")
	text := fmt.Sprintf("directories.tokendir = %s\nobjectstore.backend = file\nlog.level = ERROR\n", h.tokens())
	if err := errors.Join(os.Mkdir(h.tokens(), 0o700), os.WriteFile(conf, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOFTHSM2_CONF", conf)
	t.Setenv(helperVariable, "1")
	h.run("softhsm2-util", "--init-token", "--free", "--label", "mesh", "--pin", rightPIN, "--so-pin", "999999")
	h.writePIN(rightPIN)
	t.Cleanup(func() {
		h.logMu.Lock()
		defer h.logMu.Unlock()
		for _, pin := range []string{rightPIN, otherPIN, wrongPIN} {
			if strings.Contains(h.log.String(), pin) {
				t.Errorf("the log has a PIN: %s", h.log)
			}
		}
	})
	return h
}

func (h *hsm) tokens() string  { return filepath.Join(h.dir, "tokens") }
func (h *hsm) pinFile() string { return filepath.Join(h.dir, "pin") }

func (h *hsm) writePIN(pin string) {
	h.t.Helper()
	if err := os.WriteFile(h.pinFile(), []byte(pin+"\n"), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hsm) run(name string, args ...string) {
	h.t.Helper()
	if out, err := exec.CommandContext(h.t.Context(), name, args...).CombinedOutput(); err != nil {
		h.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// tool is pkcs11-tool of OpenSC, logged in.
func (h *hsm) tool(args ...string) {
	h.t.Helper()
	h.run("pkcs11-tool", append([]string{"--module", h.module, "--token-label", "mesh", "--login", "--pin", rightPIN}, args...)...)
}

func (h *hsm) config() kms.Config {
	program := os.Getenv(programVariable)
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			h.t.Fatal(err)
		}
	}
	return kms.Config{Type: kms.PKCS11, URI: "pkcs11:token=mesh", Module: h.module, PINFile: h.pinFile(), Helper: program,
		Timeout: metav1.Duration{Duration: 30 * time.Second}}
}

func (h *hsm) open(cfg kms.Config) *kms.Manager { return h.openBy(cfg, h.clock) }

func (h *hsm) openBy(cfg kms.Config, c clock.Clock) *kms.Manager {
	h.t.Helper()
	m, err := kms.New(cfg, signer.Deps{Clock: c, Log: slog.New(slog.NewTextHandler(h, nil))})
	if err != nil {
		h.t.Fatal(err)
	}
	testkit.Background(h.t, m.Run)
	return m
}

func fault(err error) signer.Fault {
	if e, ok := errors.AsType[*signer.Error](err); ok {
		return e.Fault
	}
	return 0
}

// want checks an error's fault and words, and that it has no PIN.
func want(t testing.TB, err error, f signer.Fault, says ...string) {
	t.Helper()
	if fault(err) != f {
		t.Errorf("got %v, want fault %d", err, f)
	}
	for _, s := range says {
		if err == nil || !strings.Contains(err.Error(), s) {
			t.Errorf("got %v, want %q in it", err, s)
		}
	}
	for _, pin := range []string{rightPIN, otherPIN, wrongPIN} {
		if err != nil && strings.Contains(err.Error(), pin) {
			t.Errorf("the error has the PIN: %v", err)
		}
	}
}

func TestContract(t *testing.T) {
	h := newHSM(t)
	keystest.Contract(t, keystest.Subject{Open: func(testing.TB) signer.KeyManager { return h.openBy(h.config(), clock.Real()) }, Makers: 4})
	shared := h.config()
	shared.Shared = true
	if !h.open(shared).Shared() {
		t.Error("a token that all replicas reach is not shared")
	}
}

// A PIN that the token refused is not tried again before the file has another one: not even when it has become right.
func TestWrongPINIsTriedOnce(t *testing.T) {
	h := newHSM(t)
	h.writePIN(wrongPIN)
	keys := h.open(h.config())
	for range 3 {
		_, err := keys.Find(t.Context(), "root")
		want(t, err, signer.Refused, "refused the PIN", h.pinFile(), "not tried again")
		h.clock.Advance(time.Minute)
	}
	h.tool("--change-pin", "--new-pin", wrongPIN)
	_, err := keys.Find(t.Context(), "root")
	want(t, err, signer.Refused, "not tried again")
	h.run("pkcs11-tool", "--module", h.module, "--token-label", "mesh", "--login", "--pin", wrongPIN, "--change-pin", "--new-pin", otherPIN)
	h.clock.Advance(time.Minute)
	h.writePIN(otherPIN)
	if _, err := keys.Make(t.Context(), "root", signer.ECDSAP256); err != nil {
		t.Errorf("with the right PIN in the file: %v", err)
	}
}

func TestPINFile(t *testing.T) {
	h := newHSM(t)
	keys := h.open(h.config())
	for name, tc := range map[string]struct {
		change func() error
		says   []string
	}{
		"missing":  {func() error { return os.Remove(h.pinFile()) }, []string{"does not exist", "write the PIN"}},
		"empty":    {func() error { return os.WriteFile(h.pinFile(), []byte("\n"), 0o600) }, []string{"is empty", "write the PIN"}},
		"readable": {func() error { return os.Chmod(h.pinFile(), 0o644) }, []string{"0644", "run: chmod o= "}}, //nolint:gosec // refused
		"directory": {func() error { return errors.Join(os.Remove(h.pinFile()), os.Mkdir(h.pinFile(), 0o700)) },
			[]string{"not a regular file"}},
		"huge": {func() error { return os.Truncate(h.pinFile(), 1<<20) }, []string{"too large"}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tc.change(); err != nil {
				t.Fatal(err)
			}
			h.clock.Advance(time.Minute)
			_, err := keys.Find(t.Context(), "root")
			want(t, err, signer.Refused, append(tc.says, h.pinFile())...)
			_ = os.Remove(h.pinFile())
			h.writePIN(rightPIN)
		})
	}
	link := filepath.Join(h.dir, "mounted")
	if err := errors.Join(os.Symlink(h.pinFile(), link), os.Chmod(h.pinFile(), 0o440)); err != nil {
		t.Fatal(err)
	}
	mounted := h.config()
	mounted.PINFile = link
	if _, err := h.open(mounted).Find(t.Context(), "root"); !errors.Is(err, signer.ErrNoKey) {
		t.Errorf("a mounted PIN: %v", err)
	}
	without := h.config()
	without.PINFile = ""
	_, err := h.open(without).Find(t.Context(), "root")
	want(t, err, signer.Refused, "pinFile: is required")
}

// children are the helpers of this process.
func children(t testing.TB) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(files) == 0 {
		t.Skip("the kernel does not list children")
	}
	var list []int
	for _, f := range files {
		text, _ := os.ReadFile(f)
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, pid)
		}
	}
	return list
}

// The PIN is changed while a session is open, which goes on. A helper that is killed is replaced by one that reads the
// new PIN.
func TestKilledHelperAndNewPIN(t *testing.T) {
	h := newHSM(t)
	keys := h.open(h.config())
	key, err := keys.Make(t.Context(), "root", signer.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	h.tool("--change-pin", "--new-pin", otherPIN)
	if err := keystest.Signs(key); err != nil {
		t.Errorf("with the session of the old PIN: %v", err)
	}
	h.writePIN(otherPIN)
	for range 3 {
		for _, pid := range children(t) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		if err := keystest.Signs(key); err != nil {
			t.Errorf("after the helper was killed: %v", err)
		}
	}
	if list := children(t); len(list) != 1 {
		t.Errorf("%d helpers are there", len(list))
	}
}

func TestTokenRemovedAndPutBack(t *testing.T) {
	h := newHSM(t)
	keys := h.open(h.config())
	key, err := keys.Make(t.Context(), "root", signer.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	away := h.tokens() + ".away"
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		move(h.tokens(), away)
		if err := os.Mkdir(h.tokens(), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := keys.Find(t.Context(), "root")
		want(t, err, signer.Away)
		t.Logf("removed: %v", err)
		_, err = keys.Make(t.Context(), "next", signer.ECDSAP256)
		want(t, err, signer.Away)
		_, err = key.Sign(rand.Reader, make([]byte, 32), crypto.SHA256)
		want(t, err, signer.Away)
		move(h.tokens(), h.tokens()+".empty")
		move(away, h.tokens())
		h.clock.Advance(time.Minute)
		if err := keystest.Signs(key); err != nil {
			t.Errorf("put back: %v", err)
		}
		if err := os.RemoveAll(h.tokens() + ".empty"); err != nil {
			t.Fatal(err)
		}
	}
	// Nothing is asked while it is away: a session of before may not see the key.
	move(h.tokens(), away)
	move(away, h.tokens())
	if _, err := keys.Make(t.Context(), "root", signer.ECDSAP256); !errors.Is(err, signer.ErrKeyExists) {
		t.Errorf("a second key of the name: %v", err)
	}
}

func TestWrongModuleAndToken(t *testing.T) {
	h := newHSM(t)
	text := filepath.Join(h.dir, "text.so")
	if err := os.WriteFile(text, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	libc, _ := filepath.Glob("/lib/*/libm.so.6")
	for name, tc := range map[string]struct {
		change func(*kms.Config)
		fault  signer.Fault
		says   []string
	}{
		"no file":         {func(c *kms.Config) { c.Module = "/nonexistent/module.so" }, signer.Refused, []string{"does not exist", "install"}},
		"a directory":     {func(c *kms.Config) { c.Module = "/usr" }, signer.Refused, []string{"regular file"}},
		"a text":          {func(c *kms.Config) { c.Module = text }, signer.Refused, []string{"cannot be loaded", "ldd"}},
		"another library": {func(c *kms.Config) { c.Module = libc[0] }, signer.Refused, []string{"cannot be loaded"}},
		"another token":   {func(c *kms.Config) { c.URI = "pkcs11:token=other" }, signer.Away, []string{"not there", `["mesh"]`}},
		"another slot":    {func(c *kms.Config) { c.URI = "pkcs11:slot-id=7" }, signer.Away, []string{"not there", `["mesh"]`}},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another library" && len(libc) == 0 {
				t.Skip("there is no other library")
			}
			cfg := h.config()
			tc.change(&cfg)
			_, err := h.open(cfg).Find(t.Context(), "root")
			want(t, err, tc.fault, tc.says...)
		})
	}
}

// What others have put on the token: keys of operators are used, and what is no key of the ca's kind is named.
func TestKeysOfOthers(t *testing.T) {
	h := newHSM(t)
	pair := func(kind, label, id string) {
		h.tool("--keypairgen", "--key-type", kind, "--label", label, "--id", id, "--usage-sign")
	}
	pair("EC:prime256v1", "operators", "01")
	pair("EC:secp224r1", "p224", "02")
	pair("EC:secp521r1", "p521", "03")
	pair("RSA:1024", "short", "04")
	pair("EC:prime256v1", "twice", "05")
	pair("EC:prime256v1", "twice", "06")
	pair("EC:prime256v1", "half", "07")
	h.tool("--delete-object", "--type", "pubkey", "--id", "07")
	pair("EC:prime256v1", "public", "08")
	h.tool("--delete-object", "--type", "privkey", "--id", "08")
	h.tool("--keygen", "--key-type", "AES:32", "--label", "symmetric", "--id", "09")
	keys := h.open(h.config())
	key, err := keys.Find(t.Context(), "operators")
	if err != nil {
		t.Fatal(err)
	}
	if err := keystest.Signs(key); err != nil {
		t.Error(err)
	}
	for name, says := range map[string]string{
		"p224": "P-224", "p521": "P-521", "short": "1024 bits", "twice": "2 private keys", "half": "no public key",
		"public": "without a private key", "symmetric": "another kind, a secret key",
	} {
		_, err := keys.Find(t.Context(), name)
		want(t, err, signer.Refused, says, `"`+name+`"`)
		if _, err := keys.Make(t.Context(), name, signer.ECDSAP256); !errors.Is(err, signer.ErrKeyExists) {
			t.Errorf("%s: another key was made: %v", name, err)
		}
	}
	for _, name := range []string{"half", "twice", "public"} {
		if err := keys.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
		if _, err := keys.Find(t.Context(), name); !errors.Is(err, signer.ErrNoKey) {
			t.Errorf("%s was not deleted: %v", name, err)
		}
	}
	if err := keys.Delete(t.Context(), "symmetric"); err != nil {
		t.Error(err)
	}
	_, err = keys.Find(t.Context(), "symmetric")
	want(t, err, signer.Refused, "secret key")
	prefixed := h.config()
	prefixed.Prefix = "oper"
	if _, err := h.open(prefixed).Find(t.Context(), "ators"); err != nil {
		t.Errorf("with a prefix: %v", err)
	}
}

// Keys do not leave the token, not even when its PIN is known.
func TestKeysStayInTheToken(t *testing.T) {
	h := newHSM(t)
	if _, err := h.open(h.config()).Make(t.Context(), "root", signer.RSA2048); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "pkcs11-tool", "--module", h.module, "--token-label", "mesh", "--login", "--pin", rightPIN,
		"--list-objects", "--type", "privkey").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "sensitive, always sensitive, never extracta") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestPSS(t *testing.T) {
	h := newHSM(t)
	key, err := h.open(h.config()).Make(t.Context(), "root", signer.RSA2048)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256([]byte("x"))
	options := &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256}
	signature, err := key.Sign(rand.Reader, digest[:], options)
	if err != nil {
		t.Fatal(err)
	}
	if err := rsa.VerifyPSS(key.Public().(*rsa.PublicKey), crypto.SHA256, digest[:], signature, options); err != nil {
		t.Error(err)
	}
	_, err = key.Sign(rand.Reader, digest[:20], crypto.SHA256)
	want(t, err, signer.Unsuitable, "20 bytes")
	_, err = key.Sign(rand.Reader, digest[:], nil)
	want(t, err, signer.Unsuitable)
}
