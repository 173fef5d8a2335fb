package kms

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/keys"
	"fairlead.dev/services/ca/internal/signer/keys/kms/wire"
)

// Variables that make the test's own program a helper that behaves in some way, and its directory.
const (
	modeVariable = "CA_KMS_FAKE_MODE"
	dirVariable  = "CA_KMS_FAKE_DIR"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeVariable); mode != "" {
		fake(mode, os.Getenv(dirVariable))
		return
	}
	os.Exit(m.Run())
}

// fake is a helper with one key, "root". In the modes with -once it misbehaves if it is the first of the directory.
func fake(mode, dir string) {
	first := os.Mkdir(filepath.Join(dir, "first"), 0o700) == nil
	if rest, once := strings.CutSuffix(mode, "-once"); once {
		mode = rest
		if !first {
			mode = "well"
		}
	}
	hello := wire.Hello{Version: wire.Version, Types: []string{PKCS11, AWSKMS}}
	switch mode {
	case "no library":
		fmt.Fprintln(os.Stderr, "error while loading shared libraries: libfoo.so: cannot open shared object file"+strings.Repeat("!", 4000))
		os.Exit(127)
	case "silent":
		select {}
	case "older":
		hello.Version = 0
	case "without pkcs11":
		hello.Types = []string{AWSKMS}
	}
	_ = wire.Write(os.Stdout, hello)
	for {
		var r wire.Request
		if wire.Read(os.Stdin, &r) != nil {
			return
		}
		a := wire.Response{ID: r.ID}
		if r.Op != wire.Open {
			a = fakeAnswer(mode, dir, r)
		}
		if mode == "refuses" {
			a.Error = &wire.Error{Code: wire.Refused, Text: "wrong " + fmt.Sprintf("%x", r.Store.RefusedPIN), RefusedPIN: []byte{0xab}}
		}
		_ = wire.Write(os.Stdout, a)
	}
}

func fakeAnswer(mode, dir string, r wire.Request) wire.Response {
	text, _ := os.ReadFile(filepath.Join(dir, "key.pem"))
	key, err := keys.Decode(text)
	if err != nil {
		panic(err)
	}
	public := key.Public()
	a := wire.Response{ID: r.ID, URI: "pkcs11:object=root"}
	switch mode {
	case "hangs":
		select {}
	case "crashes":
		panic("module")
	case "crashes at making":
		if r.Op == wire.Make {
			panic("module")
		}
		a.Error = wire.Errorf(wire.NoKey, "none")
	case "garbage":
		_, _ = os.Stdout.WriteString("\x00\x00\x00\x08warning:")
	case "huge":
		_, _ = os.Stdout.WriteString("\xff\xff\xff\xff")
	case "another request":
		a.ID += 100
	case "lost":
		a.Error = wire.Errorf(wire.Lost, "session gone")
	case "no key":
		a.Error = wire.Errorf(wire.NoKey, "none")
	case "long":
		a.Error = wire.Errorf(wire.Away, "%s", strings.Repeat("x", 5000))
	case "weak":
		weak, _ := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
		public = weak.Public()
	}
	a.PublicKey, _ = x509.MarshalPKIXPublicKey(public)
	if mode == "no public key" {
		a.PublicKey = []byte("x")
	}
	if r.Op == wire.Sign {
		a.Signature, _ = key.Sign(rand.Reader, r.Digest, crypto.Hash(r.Hash))
	}
	return a
}

// open returns a Manager with such helpers.
func open(t *testing.T, mode string) (*Manager, *testkit.Clock) {
	t.Helper()
	dir := t.TempDir()
	key, err := keys.Generate(signer.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	text, err := keys.Encode(key)
	if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "key.pem"), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Setenv(modeVariable, mode)
	t.Setenv(dirVariable, dir)
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	clock := testkit.NewClock(time.Now())
	cfg := Config{Type: PKCS11, URI: "pkcs11:token=mesh", Module: "/m.so", Helper: own, Timeout: metav1.Duration{Duration: 3 * time.Second}}
	m, err := New(cfg, signer.Deps{Clock: clock, Log: testkit.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, m.Run)
	return m, clock
}

func TestHelpersThatFail(t *testing.T) {
	for mode, tc := range map[string]struct {
		fault signer.Fault
		says  string
	}{
		"no library":      {signer.Away, "libfoo.so"},
		"silent":          {signer.Away, "said nothing"},
		"older":           {signer.Away, "another release"},
		"without pkcs11":  {signer.Away, "make kms"},
		"hangs":           {signer.Away, "no answer in 3s"},
		"crashes":         {signer.Away, "the helper ended: exit status 2"},
		"garbage":         {signer.Away, "not as expected"},
		"huge":            {signer.Away, "longer than"},
		"another request": {signer.Away, "not asked"},
		"lost":            {signer.Away, "session gone"},
		"long":            {signer.Away, "xxx"},
		"weak":            {signer.Refused, "P-224"},
		"no public key":   {signer.Lied, "public key"},
		"refuses":         {signer.Refused, "wrong"},
	} {
		t.Run(mode, func(t *testing.T) {
			m, _ := open(t, mode)
			_, err := m.Find(t.Context(), "root")
			e, ok := errors.AsType[*signer.Error](err)
			if !ok || e.Fault != tc.fault || !strings.Contains(err.Error(), tc.says) || len(err.Error()) > 700 {
				t.Errorf("got %v, want fault %d and %q", err, tc.fault, tc.says)
			}
		})
	}
}

// What a helper could not do, another does: for what may be done twice.
func TestAnotherHelperTakesOver(t *testing.T) {
	for _, mode := range []string{"crashes-once", "garbage-once", "lost-once", "no key-once"} {
		t.Run(mode, func(t *testing.T) {
			m, _ := open(t, mode)
			if mode == "no key-once" {
				// Of a session that was opened for the request, the answer counts.
				if _, err := m.Find(t.Context(), "root"); !errors.Is(err, signer.ErrNoKey) {
					t.Fatal(err)
				}
			}
			key, err := m.Find(t.Context(), "root")
			if err != nil {
				t.Fatal(err)
			}
			digest := make([]byte, 32)
			signature, err := key.Sign(rand.Reader, digest, crypto.SHA256)
			if err != nil || !ecdsa.VerifyASN1(key.Public().(*ecdsa.PublicKey), digest, signature) {
				t.Errorf("%x, %v", signature, err)
			}
		})
	}
	t.Run("not for a key that may have been made", func(t *testing.T) {
		m, _ := open(t, "crashes at making-once")
		if _, err := m.Make(t.Context(), "root", signer.ECDSAP256); err == nil || !strings.Contains(err.Error(), "ended") {
			t.Errorf("got %v", err)
		}
	})
}

// The digest of a refused PIN outlives the helper, and a refusal stands for a second without another helper.
func TestRefusedPINIsRemembered(t *testing.T) {
	m, clock := open(t, "refuses")
	for i, says := range []string{"wrong ", "wrong ", "wrong ab"} {
		if i == 2 {
			clock.Advance(2 * time.Second)
		}
		_, err := m.Find(t.Context(), "root")
		if err == nil || !strings.HasSuffix(err.Error(), says) {
			t.Errorf("%d: got %v, want %q at the end", i, err, says)
		}
	}
}

func TestManyCallsAtOnce(t *testing.T) {
	m, _ := open(t, "well")
	key, err := m.Find(t.Context(), "root")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			digest := bytes.Repeat([]byte{byte(i)}, 32)
			signature, err := key.Sign(rand.Reader, digest, crypto.SHA256)
			if err != nil || !ecdsa.VerifyASN1(key.Public().(*ecdsa.PublicKey), digest, signature) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

func TestEndOfRunEndsTheHelper(t *testing.T) {
	m, _ := open(t, "well")
	stop := testkit.Background(t, m.Run)
	if _, err := m.Find(t.Context(), "root"); err != nil {
		t.Fatal(err)
	}
	last := m.helper
	stop()
	if !last.ended() {
		t.Error("the helper goes on")
	}
	if _, err := m.Find(t.Context(), "root"); err == nil || !strings.Contains(err.Error(), "the ca ends") {
		t.Errorf("got %v", err)
	}
}

func TestIdleHelperEnds(t *testing.T) {
	m, clock := open(t, "well")
	key, err := m.Find(t.Context(), "root")
	if err != nil {
		t.Fatal(err)
	}
	last := m.helper
	clock.WaitFor(t, 1)
	clock.Advance(idle)
	select {
	case <-last.done:
	case <-time.After(testkit.Patience):
		t.Fatal("the helper goes on")
	}
	if _, err := key.Sign(rand.Reader, make([]byte, 32), crypto.SHA256); err != nil {
		t.Error(err)
	}
	clock.WaitFor(t, 1)
	if _, err := key.Sign(rand.Reader, make([]byte, 32), crypto.SHA256); err != nil {
		t.Error(err)
	}
	used := m.helper
	clock.Advance(idle)
	clock.WaitFor(t, 1)
	if used.ended() {
		t.Error("a helper ended that was asked something")
	}
}

func TestHelperThatIsNotThere(t *testing.T) {
	m, err := New(Config{Type: PKCS11, URI: "pkcs11:token=mesh", Module: "/m.so", Helper: "/nonexistent/ca-kms"},
		signer.Deps{Clock: testkit.NewClock(time.Now()), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Find(context.Background(), "root"); err == nil || !strings.Contains(err.Error(), "install the program ca-kms") {
		t.Errorf("got %v", err)
	}
}

func TestConfigCheck(t *testing.T) {
	good := Config{Type: PKCS11, URI: "pkcs11:token=mesh", Module: "/usr/lib/m.so", PINFile: "/run/pin"}
	for name, tc := range map[string]struct {
		change func(*Config)
		says   []string
	}{
		"good":              {func(*Config) {}, nil},
		"a serial":          {func(c *Config) { c.URI = "pkcs11:serial=1a2b" }, nil},
		"nothing":           {func(c *Config) { *c = Config{} }, []string{"type: is required"}},
		"another type":      {func(c *Config) { c.Type = "tpmkms" }, []string{`type: "tpmkms" is unknown`}},
		"another scheme":    {func(c *Config) { c.URI = "awskms:token=mesh" }, []string{`uri: must begin with "pkcs11:"`}},
		"no token":          {func(c *Config) { c.URI = "pkcs11:max-sessions=4" }, []string{"token, serial and slot-id"}},
		"two tokens":        {func(c *Config) { c.URI = "pkcs11:token=a;slot-id=1" }, []string{"token, serial and slot-id"}},
		"a PIN":             {func(c *Config) { c.URI = "pkcs11:token=mesh?pin-value=secret" }, []string{"uri: has pin-value", "pinFile"}},
		"a PIN in the path": {func(c *Config) { c.URI = "pkcs11:token=mesh;pin-value=secret" }, []string{"uri: has pin-value"}},
		"a PIN's file":      {func(c *Config) { c.URI = "pkcs11:token=mesh?pin-source=/secret" }, []string{"uri: has pin-source"}},
		"not a URI":         {func(c *Config) { c.URI = "pkcs11:token=%zzsecret" }, []string{"uri: has attributes"}},
		"a module there":    {func(c *Config) { c.URI = "pkcs11:token=a;module-path=/m.so" }, []string{"uri: has module-path"}},
		"relative, and no module": {func(c *Config) { c.Module, c.PINFile, c.Helper = "", "pin", "ca-kms" },
			[]string{"module: is required", `pinFile: "pin" is relative`, `helper: "ca-kms" is relative`}},
		"a long timeout": {func(c *Config) { c.Timeout.Duration = time.Hour }, []string{"timeout: 1h0m0s"}},
		"a wild prefix":  {func(c *Config) { c.Prefix = "a;id=1" }, []string{"prefix:"}},
		"a cloud":        {func(c *Config) { *c = Config{Type: AWSKMS, URI: "awskms:region=eu-west-1"} }, nil},
		"a cloud with a PIN": {func(c *Config) { c.Type, c.URI = AWSKMS, "awskms:" },
			[]string{"module: is of type pkcs11 alone", "pinFile: is of type pkcs11 alone"}},
		"a key ring": {func(c *Config) {
			*c = Config{Type: CloudKMS, URI: "cloudkms:", Prefix: "projects/p/locations/l/keyRings/r/cryptoKeys/mesh-"}
		}, nil},
		"no key ring": {func(c *Config) { *c = Config{Type: CloudKMS, URI: "cloudkms:"} }, []string{"prefix:", "keyRings/RING/cryptoKeys/"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			tc.change(&c)
			err := c.Check()
			if (err == nil) != (len(tc.says) == 0) || err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v", err)
			}
			for _, s := range tc.says {
				if err != nil && !strings.Contains(err.Error(), s) {
					t.Errorf("%v lacks %q", err, s)
				}
			}
		})
	}
}
