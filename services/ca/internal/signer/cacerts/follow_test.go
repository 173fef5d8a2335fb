package cacerts

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer"
)

// signs waits until the issuer signs with a CA.
func signs(t *testing.T, i *Issuer, ca *catest.CA, roots ...*x509.Certificate) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error { return issuedBy(t, i, ca, roots...) })
}

// says waits until Problem has the words; "" means that there is none.
func says(t *testing.T, i *Issuer, words string) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		if problem := text(i.Problem()); (problem == "") != (words == "") || !strings.Contains(problem, words) {
			return fmt.Errorf("problem: %q", problem)
		}
		return nil
	})
}

// successor is another intermediate below the same root.
func (p *plug) successor(t testing.TB) *plug {
	t.Helper()
	middle := catest.NewCA(t, p.root, catest.Key(t))
	return &plug{p.root, middle, catest.NewCA(t, middle, catest.Key(t))}
}

func TestNothingIsSignedBeforeTheFirstGoodSet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	i, log := newIssuer(t, dir, Mesh{})
	a, changed := i.Authorities()
	_, err := i.Issue(context.Background(), leaf(catest.Key(t).Public()))
	if known, ok := errors.AsType[*signer.Error](err); a != nil || !ok || known.Fault != signer.Away {
		t.Errorf("authorities %v, error %v", a, err)
	}
	if text := log.String(); !strings.Contains(text, "last_good_in_use=false") {
		t.Error(text)
	}
	run(t, i)
	p := newPlug(t)
	testkit.NoError(t, os.MkdirAll(dir, 0o700))
	mount(t, dir, p.istio(t))
	<-changed
	signs(t, i, p.issuing, p.root.Cert)
	says(t, i, "")
	want := signer.Capabilities{Extensions: true, NamesBesideCSR: true, Validity: true, Revocation: true}
	if got := i.Capabilities(); got != want {
		t.Errorf("%+v", got)
	}
}

func TestFollowsTheKubelet(t *testing.T) {
	p := newPlug(t)
	dir := t.TempDir()
	mount(t, dir, p.istio(t))
	i, log := newIssuer(t, dir, Mesh{})
	run(t, i)
	for range 3 {
		next := p.successor(t)
		mount(t, dir, next.istio(t))
		signs(t, i, next.issuing, p.root.Cert)
	}
	if problems := strings.Count(log.String(), "level=WARN"); problems > 0 { // sets of the kubelet are never mixed
		t.Error(log)
	}
}

// A set that is read while the kubelet replaces it is one of those that the kubelet wrote, or none.
func TestReadsOneVersion(t *testing.T) {
	var versions []texts
	for range 3 {
		versions = append(versions, newPlug(t).istio(t))
	}
	dir := t.TempDir()
	mount(t, dir, versions[0])
	var stop atomic.Bool
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := 0; !stop.Load(); n++ {
			mount(t, dir, versions[n%len(versions)])
		}
	})
	whole := 0
	for began := time.Now(); time.Since(began) < time.Second; {
		f, err := read(dir)
		if err != nil {
			continue
		}
		whole++
		if !slices.ContainsFunc(versions, func(v texts) bool {
			return string(v["ca-cert.pem"]) == string(f.cert) && string(v["ca-key.pem"]) == string(f.key) &&
				string(v["cert-chain.pem"]) == string(f.chain) && string(v["root-cert.pem"]) == string(f.roots)
		}) {
			t.Fatal("a mixed set")
		}
	}
	stop.Store(true)
	writer.Wait()
	if whole == 0 {
		t.Error("no set was read")
	}
	t.Logf("%d sets", whole)
}

func TestFollowsFilesReplacedOneByOne(t *testing.T) {
	p := newPlug(t)
	dir := write(t, p.istio(t))
	i, _ := newIssuer(t, dir, Mesh{})
	run(t, i)
	next := p.successor(t)
	for _, name := range []string{"ca-cert.pem", "ca-key.pem", "cert-chain.pem"} {
		// Until the last one, the set before signs.
		if err := issuedBy(t, i, p.issuing, p.root.Cert); err != nil {
			t.Fatalf("before %s: %v", name, err)
		}
		testkit.WriteFile(t, filepath.Join(dir, name), next.istio(t)[name])
		if name == "ca-cert.pem" {
			says(t, i, "ca-key.pem: is not the key of the certificate in")
		}
	}
	signs(t, i, next.issuing, p.root.Cert)
	says(t, i, "")
}

func TestTheLastGoodSetServes(t *testing.T) {
	p := newPlug(t)
	dir := write(t, p.istio(t))
	i, log := newIssuer(t, dir, Mesh{})
	run(t, i)
	testkit.WriteFile(t, filepath.Join(dir, "ca-key.pem"), []byte("-----BEGIN PRIVATE"))
	says(t, i, "ca-key.pem")
	if err := issuedBy(t, i, p.issuing, p.root.Cert); err != nil {
		t.Error(err)
	}
	testkit.NoError(t, os.Remove(filepath.Join(dir, "ca-key.pem")))
	says(t, i, "ca-key.pem: is missing")
	testkit.NoError(t, os.RemoveAll(dir))
	says(t, i, "mount the Secret")
	if err := issuedBy(t, i, p.issuing, p.root.Cert); err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "last_good_in_use=true") {
		t.Error(text)
	}
	next := p.successor(t)
	testkit.NoError(t, os.Mkdir(dir, 0o700))
	mount(t, dir, next.tls(t)) // the other layout as well
	signs(t, i, next.issuing, p.root.Cert)
	says(t, i, "")
}

// A set whose root the mesh does not have would make every new leaf useless.
func TestAForeignRootWaits(t *testing.T) {
	old, next := newPlug(t), newPlug(t)
	both := catest.Certs(old.root, next.root)
	dir := write(t, old.istio(t))
	i, log := newIssuer(t, dir, Mesh{})
	replace := func(files texts) {
		t.Helper()
		for name, content := range files {
			testkit.WriteFile(t, filepath.Join(dir, name), content)
		}
		i.reload()
	}
	replace(next.istio(t))
	if err := i.Problem(); !errors.Is(err, ErrRootNotTrusted) || !strings.Contains(text(err), filepath.Join(dir, "root-cert.pem")) {
		t.Errorf("%v", err)
	}
	steps := func(when string, signing *catest.CA, roots ...*catest.CA) {
		t.Helper()
		if err := errors.Join(issuedBy(t, i, signing, old.root.Cert, next.root.Cert), rootsAre(i, roots...)); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	steps("all at once", old.issuing, old.root, next.root)
	replace(old.istio(t))
	if err := i.Problem(); err != nil {
		t.Error(err)
	}
	steps("back", old.issuing, old.root)
	replace(texts{"root-cert.pem": both})
	steps("both roots", old.issuing, old.root, next.root)
	replace(next.istio(t).with(texts{"root-cert.pem": both}))
	steps("the new certificate", next.issuing, old.root, next.root)
	replace(texts{"root-cert.pem": catest.Certs(next.root)})
	steps("the new root", next.issuing, next.root)
	if err := i.Problem(); err != nil || strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("%v\n%s", err, log)
	}
}

// The ca says when every verifier has a root.
func TestARootIsUsedWhenTheMeshTrustsIt(t *testing.T) {
	old, next := newPlug(t), newPlug(t)
	dir := write(t, old.istio(t))
	var trusted atomic.Bool
	i, _ := newIssuer(t, dir, Mesh{Trusted: func(root *x509.Certificate) bool { return trusted.Load() && root.Equal(next.root.Cert) }})
	run(t, i)
	for name, content := range next.istio(t) {
		testkit.WriteFile(t, filepath.Join(dir, name), content)
	}
	says(t, i, ErrRootNotTrusted.Error())
	if err := errors.Join(rootsAre(i, old.root, next.root), issuedBy(t, i, old.issuing, old.root.Cert)); err != nil {
		t.Error(err)
	}
	trusted.Store(true)
	signs(t, i, next.issuing, next.root.Cert)
	says(t, i, "")
	if err := rootsAre(i, next.root); err != nil {
		t.Error(err)
	}
	trusted.Store(false) // another intermediate below the root needs no question
	third := next.successor(t)
	for name, content := range third.istio(t) {
		testkit.WriteFile(t, filepath.Join(dir, name), content)
	}
	signs(t, i, third.issuing, next.root.Cert)
}

// istiod renews its own root with the same key: whoever has the old certificate verifies what the new one signs.
func TestARenewedRootIsTrusted(t *testing.T) {
	first := catest.NewCA(t, nil, catest.Key(t))
	second := catest.NewCA(t, nil, first.Key, func(c *x509.Certificate) { c.Subject = first.Cert.Subject })
	files := func(ca *catest.CA) texts {
		return texts{"ca-cert.pem": catest.Certs(ca), "ca-key.pem": catest.KeyPEM(t, ca.Key), "root-cert.pem": catest.Certs(first), "cert-chain.pem": {}}
	}
	dir := write(t, files(first))
	i, _ := newIssuer(t, dir, Mesh{})
	for name, content := range files(second) {
		testkit.WriteFile(t, filepath.Join(dir, name), content)
	}
	i.reload()
	if err := errors.Join(i.Problem(), rootsAre(i, first, second), issuedBy(t, i, second, first.Cert)); err != nil {
		t.Error(err)
	}
}

// A certificate that was a root is an intermediate in the next set: the certificates are the same in other places.
func TestARootBecomesAnIntermediate(t *testing.T) {
	p := newPlug(t)
	dir := t.TempDir()
	mount(t, dir, p.istio(t).with(texts{
		"cert-chain.pem": catest.Certs(p.issuing), "root-cert.pem": catest.Certs(p.middle, p.root),
	}))
	i, _ := newIssuer(t, dir, Mesh{})
	testkit.NoError(t, issuedBy(t, i, p.issuing, p.middle.Cert))

	mount(t, dir, p.istio(t))
	i.reload()
	testkit.NoError(t, rootsAre(i, p.root))
	testkit.NoError(t, issuedBy(t, i, p.issuing, p.root.Cert))
}

func TestExpiresSoon(t *testing.T) {
	p := newPlug(t)
	soon := catest.NewCA(t, p.middle, catest.Key(t), catest.Valid(time.Now().Add(-10*time.Hour), time.Now().Add(90*time.Minute)))
	dir := write(t, p.istio(t).with(texts{"ca-cert.pem": catest.Certs(soon), "ca-key.pem": catest.KeyPEM(t, soon.Key),
		"cert-chain.pem": catest.Certs(p.middle)}))
	i, _ := newIssuer(t, dir, Mesh{})
	if problem := text(i.Problem()); !strings.Contains(problem, "ca-cert.pem: validity: expires at") {
		t.Errorf("%q", problem)
	}
	if err := issuedBy(t, i, soon, p.root.Cert); err != nil {
		t.Error(err)
	}
}

// Goroutines issue all the time while the files are replaced: as the kubelet does and one by one, intermediates and
// roots. Every leaf verifies with the roots announced when it was asked for, and none fails.
func TestReplacedUnderLoad(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, dir string, files texts){
		"by the kubelet": func(t *testing.T, dir string, files texts) { t.Helper(); mount(t, dir, files) },
		"one by one": func(t *testing.T, dir string, files texts) {
			t.Helper()
			for name, content := range files {
				testkit.WriteFile(t, filepath.Join(dir, name), content)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlug(t)
			dir := t.TempDir()
			replace(t, dir, p.istio(t))
			i, _ := newIssuer(t, dir, Mesh{})
			run(t, i)
			issued := load(t, i)
			const rounds = 6
			for round := range rounds {
				next := p.successor(t)
				if round%3 == 2 { // another root, first beside the old one
					next = newPlug(t)
					both := catest.Certs(p.root, next.root)
					replace(t, dir, p.istio(t).with(texts{"root-cert.pem": both}))
					testkit.Eventually(t, testkit.Patience, func() error { return rootsAre(i, p.root, next.root) })
					replace(t, dir, next.istio(t).with(texts{"root-cert.pem": both}))
					signs(t, i, next.issuing, next.root.Cert)
				}
				replace(t, dir, next.istio(t))
				signs(t, i, next.issuing, next.root.Cert)
				testkit.Eventually(t, testkit.Patience, func() error { return rootsAre(i, next.root) })
				p = next
			}
			if n := issued(); n < 100*rounds {
				t.Errorf("%d leaves in %d rounds", n, rounds)
			}
		})
	}
}

// load issues with four goroutines until the returned function is called, which returns how many leaves there were.
func load(t *testing.T, i *Issuer) (issued func() int64) {
	t.Helper()
	var count atomic.Int64
	var workers sync.WaitGroup
	stop := make(chan struct{})
	key := catest.Key(t)
	for range 4 {
		workers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := issueOne(i, leaf(key.Public())); err != nil {
					t.Error(err)
					return
				}
				count.Add(1)
			}
		})
	}
	return sync.OnceValue(func() int64 {
		close(stop)
		workers.Wait()
		return count.Load()
	})
}

// issueOne does what the ca does: it looks at the authorities, decides the validity, and checks the chain.
func issueOne(i *Issuer, r *signer.Request) error {
	before, _ := i.Authorities()
	chain, err := i.Issue(context.Background(), bounded(r, before))
	if err != nil {
		return err
	}
	after, _ := i.Authorities()
	roots := catest.Pool(slices.Concat(before.Roots, after.Roots)...)
	if err := signer.Check(r, i.Capabilities(), chain, roots, time.Now()); err != nil {
		return err
	}
	return nil
}

func TestAProblemThatLastsIsOneLine(t *testing.T) {
	dir := t.TempDir()
	i, log := newIssuer(t, dir, Mesh{}) // it has found no files
	before := strings.Count(log.String(), "\n")
	for range 3 {
		i.reload()
	}
	if after := strings.Count(log.String(), "\n"); before == 0 || after != before {
		t.Errorf("%d lines, and %d after three more readings: %s", before, after, log)
	}
}
