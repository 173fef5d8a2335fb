package svid_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

func TestKeysAreOfTheTypeThatIsAskedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		key   svid.KeyType
		block string
		is    func(any) bool
	}{
		"default":           {svid.KeyType{}, "PRIVATE KEY", onCurve(elliptic.P256())},
		"P-384":             {svid.KeyType{Curve: elliptic.P384()}, "PRIVATE KEY", onCurve(elliptic.P384())},
		"ECDSA in SEC 1":    {svid.KeyType{Traditional: true}, "EC PRIVATE KEY", onCurve(elliptic.P256())},
		"RSA":               {svid.KeyType{RSABits: 2048}, "PRIVATE KEY", ofBits(2048)},
		"3072 bits, PKCS#1": {svid.KeyType{RSABits: 3072, Traditional: true}, "RSA PRIVATE KEY", ofBits(3072)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.cfg.Key = tc.key
			got := ready(t, w.start(t))
			if !tc.is(got.Certificate.PrivateKey) {
				t.Errorf("key is a %T", got.Certificate.PrivateKey)
			}
			if block, _ := pem.Decode(got.KeyPEM); block == nil || block.Type != tc.block {
				t.Errorf("PEM block %v, want %s", block, tc.block)
			}
			if _, err := tlsconf.NewMaterial(got.CertPEM, got.KeyPEM, got.RootsPEM); err != nil {
				t.Errorf("the PEM texts do not belong together: %v", err)
			}
		})
	}
}

func onCurve(c elliptic.Curve) func(any) bool {
	return func(key any) bool { k, ok := key.(*ecdsa.PrivateKey); return ok && k.Curve == c }
}

func ofBits(n int) func(any) bool {
	return func(key any) bool { k, ok := key.(*rsa.PrivateKey); return ok && k.N.BitLen() == n }
}

// provision writes key and chain as they are written for a machine.
func provision(t *testing.T, m *tlsconf.Material) string {
	t.Helper()
	dir := t.TempDir()
	testkit.WriteFile(t, filepath.Join(dir, svid.KeyFile), m.KeyPEM)
	testkit.WriteFile(t, filepath.Join(dir, svid.ChainFile), m.CertPEM)
	return dir
}

func TestProvisionedCertificateAuthenticates(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*testing.T, *fixture)
		want   string
	}{
		"without a token": {func(_ *testing.T, w *fixture) { w.cfg.TokenFile = "" }, auth.MethodMTLS},
		"and the token is refused": {func(t *testing.T, w *fixture) { testkit.WriteFile(t, w.cfg.TokenFile, []byte("expired")) },
			auth.MethodMTLS},
		"unless it has expired": {func(t *testing.T, w *fixture) {
			past := w.clock.Now().Add(-time.Minute)
			w.cfg.ProvisionedDir = provision(t, current(t, w.ca.NewSVID("bookinfo", "reviews", testkit.Valid(past.Add(-time.Hour), past))))
		}, auth.MethodJWT},
		"unless there is none": {func(t *testing.T, w *fixture) { w.cfg.ProvisionedDir = t.TempDir() }, auth.MethodJWT},
		"unless others can read its key": {func(t *testing.T, w *fixture) {
			if err := os.Chmod(filepath.Join(w.cfg.ProvisionedDir, svid.KeyFile), 0o640); err != nil {
				t.Fatal(err)
			}
		}, auth.MethodJWT},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.cfg.ProvisionedDir = provision(t, current(t, w.ca.NewSVID("bookinfo", "reviews")))
			tc.change(t, w)
			ready(t, w.start(t))
			if got := w.server.calls(); len(got) != 1 || got[0] != tc.want {
				t.Errorf("callers authenticated by %v, want %s", got, tc.want)
			}
		})
	}
}

func TestWrittenFilesServeTheNextStart(t *testing.T) {
	w := newFixture(t)
	kept := current(t, w.ca.NewSVID("bookinfo", "reviews"))
	w.cfg.RestoreDir, w.cfg.TokenFile, w.cfg.CAAddress = provision(t, kept), "", "127.0.0.1:1"
	if got := ready(t, w.run(t)); !got.Certificate.Leaf.Equal(kept.Certificate.Leaf) {
		t.Error("not the certificate that was kept")
	}
}

func TestFilesOfAnotherKeyAreNotUsed(t *testing.T) {
	w := newFixture(t)
	w.cfg.RestoreDir = provision(t, current(t, w.ca.NewSVID("bookinfo", "reviews")))
	testkit.WriteFile(t, filepath.Join(w.cfg.RestoreDir, svid.KeyFile), current(t, w.ca.NewSVID("bookinfo", "reviews")).KeyPEM)
	ready(t, w.start(t))
	if n := len(w.server.calls()); n != 1 {
		t.Errorf("%d requests, want one", n)
	}
}

func TestRootsOfTheCAServerAreItsOwn(t *testing.T) {
	w := newFixture(t)
	other := testkit.PKI(t)
	w.server.tls.Set(current(t, other.NewSVID("istio-system", "ca")))
	w.cfg.CARootFile = other.WriteRoot(t.TempDir())
	got := ready(t, w.start(t))
	if string(got.RootsPEM) != string(w.ca.RootPEM) {
		t.Error("roots are not those of RootFile")
	}
}

func TestRenewalFollowsTheGraceRatio(t *testing.T) {
	for name, tc := range map[string]struct {
		ratio, jitter, random float64
		want                  time.Duration
	}{
		"a fifth is left":         {0.2, 0, 0.5, 80 * time.Minute},
		"jitter makes it sooner":  {0.2, 0.1, 0, 70 * time.Minute},
		"jitter makes it later":   {0.2, 0.1, 1, 90 * time.Minute},
		"jitter beyond the end":   {0.1, 0.9, 1, 99 * time.Minute},
		"jitter before the start": {0.9, 0.9, 0, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.cfg.GraceRatio, w.cfg.GraceJitter, w.cfg.Rand = tc.ratio, &tc.jitter, func() float64 { return tc.random }
			w.server.ttl = 100 * time.Minute
			log := &testkit.Buffer{}
			w.cfg.Log, w.cfg.Registerer = slog.New(slog.NewJSONHandler(log, nil)), prometheus.NewRegistry()
			ready(t, w.start(t))
			want := `"renew_at":"` + w.clock.Now().Add(tc.want).Format("2006-01-02T15:04")
			testkit.Eventually(t, patience, func() error {
				if !strings.Contains(log.String(), want) {
					return os.ErrNotExist
				}
				return nil
			})
		})
	}
}

func TestOptionsOfKeysAndRenewalAreChecked(t *testing.T) {
	for want, change := range map[string]func(*svid.Config){
		"1024 bits":          func(c *svid.Config) { c.Key.RSABits = 1024 },
		"8192 bits":          func(c *svid.Config) { c.Key.RSABits = 8192 },
		"curve P-521":        func(c *svid.Config) { c.Key.Curve = elliptic.P521() },
		"grace ratio 1 ":     func(c *svid.Config) { c.GraceRatio = 1 },
		"grace ratio -0.1":   func(c *svid.Config) { c.GraceRatio = -0.1 },
		"jitter of the grac": func(c *svid.Config) { c.GraceJitter = new(1.5) },
	} {
		w := newFixture(t)
		w.cfg.CAAddress = "127.0.0.1:1"
		change(&w.cfg)
		if _, err := svid.New(w.cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
