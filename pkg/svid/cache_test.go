package svid_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
)

func TestCache(t *testing.T) {
	w := newFixture(t)
	w.cfg.CacheDir = filepath.Join(t.TempDir(), "svid")
	file := filepath.Join(w.cfg.CacheDir, "svid.pem")
	first := ready(t, w.start(t))
	testkit.Eventually(t, patience, func() error { _, err := os.Stat(file); return err })
	for path, want := range map[string]os.FileMode{w.cfg.CacheDir: 0o700, file: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v, want %o", path, info.Mode(), err, want)
		}
	}
	requests := len(w.server.calls())
	again := func(t *testing.T, change func(*svid.Config)) *svid.Manager {
		t.Helper()
		v := *w
		v.cfg.Registerer, v.cfg.Log = prometheus.NewRegistry(), testkit.Logger(t)
		change(&v.cfg)
		return v.run(t)
	}

	t.Run("is used while the CA is away", func(t *testing.T) {
		m := again(t, func(c *svid.Config) { c.CAAddress, c.TokenFile = "127.0.0.1:1", "" })
		if !ready(t, m).Certificate.Leaf.Equal(first.Certificate.Leaf) || len(w.server.calls()) != requests {
			t.Error("not the cached certificate")
		}
	})
	t.Run("is renewed without a token", func(t *testing.T) {
		m := again(t, func(c *svid.Config) { c.TokenFile = "" })
		old := ready(t, m)
		m.Renew()
		renewedFrom(t, m, old)
	})
	for name, spoil := range map[string]func(*testing.T, *svid.Config){
		"of another identity is not used": func(t *testing.T, c *svid.Config) {
			c.Identity = w.ca.ID("bookinfo", "ratings")
			c.TokenFile = w.issuer.TokenFile("bookinfo", "ratings", "istio-ca")
		},
		"that others can read is not used": func(t *testing.T, _ *svid.Config) {
			if err := os.Chmod(file, 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"that is broken is not used": func(t *testing.T, _ *svid.Config) {
			testkit.WriteFile(t, file, []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
		},
		"that has expired is not used": func(*testing.T, *svid.Config) { w.clock.Advance(48 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			before := len(w.server.calls())
			m := again(t, func(c *svid.Config) { spoil(t, c) })
			ready(t, m)
			if len(w.server.calls()) == before {
				t.Error("the CA was not asked")
			}
		})
	}
}
