package tlsconf_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

type paths struct{ cert, key, root string }

func in(dir string) paths {
	return paths{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "root.pem")}
}

func (p paths) config() tlsconf.FilesConfig {
	return tlsconf.FilesConfig{CertFile: p.cert, KeyFile: p.key, RootFile: p.root}
}

func (p paths) write(t *testing.T, m *tlsconf.Material) {
	t.Helper()
	testkit.WriteFile(t, p.cert, m.CertPEM)
	testkit.WriteFile(t, p.key, m.KeyPEM)
	testkit.WriteFile(t, p.root, m.RootsPEM)
}

func run(t *testing.T, f *tlsconf.Files) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func serialIs(f *tlsconf.Files, want *tlsconf.Material) func() error {
	return func() error {
		m, err := f.Current()
		if err != nil {
			return err
		}
		if m.Certificate.Leaf.SerialNumber.Cmp(want.Certificate.Leaf.SerialNumber) != 0 {
			return errors.New("still the other certificate")
		}
		return nil
	}
}

func TestFilesErrorsNameTheFile(t *testing.T) {
	ca := testkit.PKI(t)
	m := current(t, ca.NewSVID("a", "b"))
	foreign := current(t, ca.NewSVID("a", "c"))
	for name, tc := range map[string]struct {
		change func(p *paths)
		want   string
	}{
		"root missing":               {func(p *paths) { _ = os.Remove(p.root) }, "root.pem"},
		"cert missing":               {func(p *paths) { _ = os.Remove(p.cert) }, "cert.pem"},
		"key missing":                {func(p *paths) { _ = os.Remove(p.key) }, "key.pem"},
		"cert empty":                 {func(p *paths) { _ = os.WriteFile(p.cert, nil, 0o600) }, "cert.pem"},
		"key of another certificate": {func(p *paths) { _ = os.WriteFile(p.key, foreign.KeyPEM, 0o600) }, "private key does not match"},
		"key without certificate":    {func(p *paths) { p.cert = "" }, "together"},
		"no root configured":         {func(p *paths) { p.root = "" }, "no root certificate file"},
	} {
		t.Run(name, func(t *testing.T) {
			p := in(t.TempDir())
			p.write(t, m)
			tc.change(&p)
			f := tlsconf.NewFiles(p.config())
			_, err := f.Current()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if f.Check() == nil {
				t.Error("Check sees no trouble")
			}
		})
	}
}

func TestFilesFollowNotifications(t *testing.T) {
	ca := testkit.PKI(t)
	first, second := current(t, ca.NewSVID("a", "b")), current(t, ca.NewSVID("a", "b"))
	p := in(t.TempDir())
	p.write(t, first)
	cfg := p.config()
	cfg.Clock = testkit.NewClock(time.Now()) // stands still: only a notification can bring the change
	f := tlsconf.NewFiles(cfg)
	run(t, f)
	cfg.Clock.(*testkit.Clock).WaitFor(t, 1)
	testkit.Eventually(t, testkit.Patience, serialIs(f, first))

	changed := f.Changed()
	p.write(t, second)
	<-changed
	testkit.Eventually(t, testkit.Patience, serialIs(f, second))
}

func TestFilesFollowASwitchedLink(t *testing.T) {
	ca := testkit.PKI(t)
	first, second := current(t, ca.NewSVID("a", "b")), current(t, ca.NewSVID("a", "b"))
	dir := t.TempDir()
	for name, m := range map[string]*tlsconf.Material{"v1": first, "v2": second} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		in(filepath.Join(dir, name)).write(t, m)
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(dir, name+".new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("v1", "..data")
	for _, name := range []string{"cert.pem", "key.pem", "root.pem"} {
		link("..data/"+name, name)
	}
	cfg := in(dir).config()
	cfg.Clock = testkit.NewClock(time.Now())
	f := tlsconf.NewFiles(cfg)
	run(t, f)
	cfg.Clock.(*testkit.Clock).WaitFor(t, 1)
	link("v2", "..data")
	testkit.Eventually(t, testkit.Patience, serialIs(f, second))
}

func TestFilesAreReadAgainWithoutNotification(t *testing.T) {
	ca := testkit.PKI(t)
	first, second := current(t, ca.NewSVID("a", "b")), current(t, ca.NewSVID("a", "b"))
	real, linked := t.TempDir(), t.TempDir()
	in(real).write(t, first)
	// The files are links into a directory that is not watched, so there is no notification.
	for _, name := range []string{"cert.pem", "key.pem", "root.pem"} {
		if err := os.Symlink(filepath.Join(real, name), filepath.Join(linked, name)); err != nil {
			t.Fatal(err)
		}
	}
	cfg := in(linked).config()
	clk := testkit.NewClock(time.Now())
	cfg.Clock, cfg.Interval = clk, time.Minute
	f := tlsconf.NewFiles(cfg)
	run(t, f)
	clk.WaitFor(t, 1)
	testkit.Eventually(t, testkit.Patience, serialIs(f, first))
	in(real).write(t, second)
	clk.Advance(time.Minute)
	testkit.Eventually(t, testkit.Patience, serialIs(f, second))
}

func TestFilesKeepTheLastGood(t *testing.T) {
	ca := testkit.PKI(t)
	m := current(t, ca.NewSVID("a", "b"))
	p := in(t.TempDir())
	p.write(t, m)
	f := tlsconf.NewFiles(p.config())
	run(t, f)
	testkit.Eventually(t, testkit.Patience, serialIs(f, m))
	testkit.WriteFile(t, p.root, []byte("half a fi"))
	testkit.Eventually(t, testkit.Patience, func() error {
		if f.Check() == nil {
			return errors.New("trouble is not noticed")
		}
		return nil
	})
	if err := serialIs(f, m)(); err != nil {
		t.Errorf("last good material is gone: %v", err)
	}
	testkit.WriteFile(t, p.root, ca.RootPEM)
	testkit.Eventually(t, testkit.Patience, f.Check)
}

func TestFilesThatAppearLater(t *testing.T) {
	ca := testkit.PKI(t)
	m := current(t, ca.NewSVID("a", "b"))
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	clk := testkit.NewClock(time.Now())
	cfg := in(dir).config()
	cfg.Clock, cfg.Interval = clk, time.Hour
	f := tlsconf.NewFiles(cfg)
	if _, err := f.Current(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
	run(t, f)
	clk.WaitFor(t, 1)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	in(dir).write(t, m)
	clk.Advance(time.Second) // while something is missing the interval is short
	testkit.Eventually(t, testkit.Patience, serialIs(f, m))
}
