package cacerts

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer"
)

// texts are the files of a directory, by name.
type texts map[string][]byte

// with returns a copy with some files changed; nil removes one.
func (x texts) with(changes texts) texts {
	out := maps.Clone(x)
	for name, content := range changes {
		if out[name] = content; content == nil {
			delete(out, name)
		}
	}
	return out
}

// plug is a plugged-in CA: an issuing certificate below an intermediate below a root.
type plug struct{ root, middle, issuing *catest.CA }

func newPlug(t testing.TB) *plug {
	t.Helper()
	root := catest.NewCA(t, nil, catest.Key(t))
	middle := catest.NewCA(t, root, catest.Key(t))
	return &plug{root, middle, catest.NewCA(t, middle, catest.Key(t))}
}

// istio has the names of Istio's Secret cacerts, with the chain as its documentation makes it.
func (p *plug) istio(t testing.TB) texts {
	t.Helper()
	return texts{
		"ca-cert.pem": catest.Certs(p.issuing), "ca-key.pem": catest.KeyPEM(t, p.issuing.Key),
		"cert-chain.pem": catest.Certs(p.issuing, p.middle, p.root), "root-cert.pem": catest.Certs(p.root),
	}
}

// tls has the names of a TLS Secret, as cert-manager fills it.
func (p *plug) tls(t testing.TB) texts {
	t.Helper()
	return texts{
		"tls.crt": catest.Certs(p.issuing, p.middle), "tls.key": catest.KeyPEM(t, p.issuing.Key), "ca.crt": catest.Certs(p.root),
	}
}

// write makes a directory of these files alone.
func write(t testing.TB, files texts) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		testkit.WriteFile(t, filepath.Join(dir, name), content)
	}
	return dir
}

// mount replaces the files of a directory as the kubelet does.
func mount(t testing.TB, dir string, files texts) {
	t.Helper()
	version, err := os.MkdirTemp(dir, "..2026_11_27_20_00_00.")
	testkit.NoError(t, err)
	testkit.NoError(t, os.Chmod(version, 0o755)) //nolint:gosec // as the kubelet
	for name, content := range files {
		testkit.NoError(t, os.WriteFile(filepath.Join(version, name), content, 0o644)) //nolint:gosec // as the kubelet
	}
	link := filepath.Join(dir, kubeletLink)
	before, _ := os.Readlink(link)
	testkit.NoError(t, os.Symlink(filepath.Base(version), link+"_tmp"))
	testkit.NoError(t, os.Rename(link+"_tmp", link))
	for name := range files {
		if err := os.Symlink(filepath.Join(kubeletLink, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	if before != "" {
		testkit.NoError(t, os.RemoveAll(filepath.Join(dir, before)))
	}
}

func deps() signer.Deps {
	return signer.Deps{TrustDomain: spiffeid.RequireTrustDomainFromString("cluster.local")}
}

// newIssuer makes one that has read the directory once, with its log.
func newIssuer(t testing.TB, dir string, m Mesh) (*Issuer, *testkit.Buffer) {
	t.Helper()
	log := &testkit.Buffer{}
	d := deps()
	d.Log = slog.New(slog.NewTextHandler(log, nil))
	i, err := New(Config{Directory: dir}, d, m)
	testkit.NoError(t, err)
	i.reload()
	return i, log
}

// run runs the issuer until the test ends.
func run(t testing.TB, i *Issuer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// leaf is a request for a leaf of a key that is made once, because making keys takes longer than signing.
func leaf(public any) *signer.Request {
	now := time.Now()
	id := spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/web")
	return &signer.Request{Identity: id, Template: &x509.Certificate{
		PublicKey: public, URIs: []*url.URL{id.URL()}, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}}
}

// bounded moves the validity of a request into that of the authorities, as package policy does.
func bounded(r *signer.Request, a *signer.Authorities) *signer.Request {
	if a != nil && r.Template.NotBefore.Before(a.NotBefore) {
		r.Template.NotBefore = a.NotBefore
	}
	return r
}

// issuedBy issues a leaf, checks it as the ca does, and returns an error unless ca has signed it.
func issuedBy(t testing.TB, i *Issuer, ca *catest.CA, roots ...*x509.Certificate) error {
	t.Helper()
	a, _ := i.Authorities()
	r := bounded(leaf(catest.Key(t).Public()), a)
	chain, err := i.Issue(context.Background(), r)
	if err != nil {
		return err
	}
	if err := signer.Check(r, i.Capabilities(), chain, catest.Pool(roots...), time.Now()); err != nil {
		return err
	}
	if err := chain[0].CheckSignatureFrom(ca.Cert); err != nil {
		return fmt.Errorf("signed by %q: %w", chain[0].Issuer, err)
	}
	return nil
}

// rootsAre returns an error unless the issuer announces these roots, in any order.
func rootsAre(i *Issuer, want ...*catest.CA) error {
	a, _ := i.Authorities()
	if a == nil {
		return errors.New("no authorities")
	}
	compare := func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) }
	var wanted []*x509.Certificate
	for _, ca := range want {
		wanted = append(wanted, ca.Cert)
	}
	if !slices.EqualFunc(slices.SortedFunc(slices.Values(a.Roots), compare), slices.SortedFunc(slices.Values(wanted), compare),
		(*x509.Certificate).Equal) {
		return fmt.Errorf("%d roots, wanted %d", len(a.Roots), len(want))
	}
	return nil
}
