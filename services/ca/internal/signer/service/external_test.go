package service_test

import (
	"context"
	"crypto/x509"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/service"
	"fairlead.dev/services/ca/internal/signer/signertest"
)

// samples is the module of the samples.
const samples = "../../../../../samples"

// TestExternalSigner runs samples/external-signer with the files that its README makes, as a process of its own.
func TestExternalSigner(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("there is no openssl, with which samples/external-signer/make-files.sh makes its files; install it")
	}
	dir := t.TempDir()
	program, files := filepath.Join(dir, "external-signer"), filepath.Join(dir, "files")
	build := exec.Command("go", "build", "-o", program, "./external-signer")
	build.Dir = samples
	for _, c := range []*exec.Cmd{build, exec.Command(filepath.Join(samples, "external-signer", "make-files.sh"), files, "signer.example")} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c, err, out)
		}
	}
	in := func(name string) string { return filepath.Join(files, name) }
	address, clock, d := testkit.FreeAddress(t).String(), testkit.NewClock(time.Now()), deps(&testkit.Buffer{})
	d.Clock = clock
	s, err := service.New(service.Config{
		Address: address, ServerName: "signer.example", CAFile: in("client-ca.pem"), CertFile: in("client.pem"), KeyFile: in("client-key.pem"),
	}, d, nil)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Background(t, s.Run)
	r, _ := signertest.Request(t)
	_, err = s.Issue(t.Context(), r)
	signertest.WantError(t, err, signer.Away, "connection refused")

	var log testkit.Buffer
	start := func() (stop func()) {
		return testkit.Background(t, func(ctx context.Context) error {
			c := exec.CommandContext(ctx, program, "-listen", address, "-dir", files)
			c.Stdout, c.Stderr = &log, &log
			if err := c.Run(); ctx.Err() == nil {
				return errors.Join(err, errors.New(log.String()))
			}
			return nil
		})
	}
	stop := start()
	testkit.Eventually(t, testkit.Patience, func() error {
		if a, _ := s.Authorities(); a == nil {
			clock.Advance(time.Second)
			return os.ErrNotExist
		}
		_, err := s.Issue(t.Context(), r)
		return err
	})
	r.Template.DNSNames = []string{"web.shop.svc"}
	chain, err := signertest.Issue(t, s, r)
	if err != nil {
		t.Fatal(err)
	}
	if len(chain) != 2 || chain[1].Subject.CommonName != "Mesh signer" {
		t.Errorf("the chain is %v", chain)
	}
	t.Run("many at once", func(t *testing.T) { signertest.Flood(t, s, r, 1024) })
	t.Run("an end after the authority's", func(t *testing.T) {
		a, _ := s.Authorities()
		longer := *r
		copied := *r.Template
		copied.NotAfter = a.NotAfter.AddDate(1, 0, 0)
		longer.Template = &copied
		_, err := s.Issue(t.Context(), &longer)
		signertest.WantError(t, err, signer.Refused, "before the one asked for")
	})
	t.Run("another client", func(t *testing.T) {
		pki := testkit.PKI(t)
		cert, key := pki.NewServer("fairlead-ca")
		own := t.TempDir()
		testkit.WriteFile(t, filepath.Join(own, "cert.pem"), cert)
		testkit.WriteFile(t, filepath.Join(own, "key.pem"), key)
		other, err := service.New(service.Config{
			Address: address, ServerName: "signer.example", CAFile: in("client-ca.pem"),
			CertFile: filepath.Join(own, "cert.pem"), KeyFile: filepath.Join(own, "key.pem"),
		}, deps(&testkit.Buffer{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		_, err = other.Issue(t.Context(), r)
		signertest.WantError(t, err, signer.Away)
	})

	// Its root is exchanged, and the signer restarted.
	before, changed := s.Authorities()
	stop()
	again := exec.Command(filepath.Join(samples, "external-signer", "make-files.sh"), filepath.Join(dir, "new"))
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"authority.pem", "authority-key.pem"} {
		raw, err := os.ReadFile(filepath.Join(dir, "new", name))
		if err != nil {
			t.Fatal(err)
		}
		testkit.WriteFile(t, in(name), raw)
	}
	start()
	testkit.Eventually(t, testkit.Patience, func() error { _, err := s.Issue(t.Context(), r); return err })
	if chain, err = s.Issue(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(before.Roots[0])
	if err := signer.Check(r, s.Capabilities(), chain, pool, time.Now()); err == nil {
		t.Error("a certificate of the new root verifies with the old one")
	}
	select {
	case <-changed:
		t.Error("the roots changed before GetRoots was asked again")
	default:
	}
	clock.Advance(time.Minute)
	<-changed
	if _, err := signertest.Issue(t, s, r); err != nil {
		t.Error(err)
	}
}
