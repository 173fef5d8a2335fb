package driver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/held"
	"fairlead.dev/services/ca/internal/holders"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/kinds"
	"fairlead.dev/services/ca/internal/store"
	"fairlead.dev/services/ca/internal/trustbundle"
)

var errKilled = errors.New("killed")

// disk is the file system of a process that is killed before one of its steps: what the disk has then is kept, and
// nothing more reaches it.
type disk struct {
	dir, kept string
	// at is the step, 0 for none.
	at int

	mu    sync.Mutex
	steps int
	dead  atomic.Bool
	where string
}

func (d *disk) fault(step fileio.Step, path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead.Load() {
		return errKilled
	}
	if d.steps++; d.steps != d.at {
		return nil
	}
	d.where = fmt.Sprintf("%s %s", step, filepath.Base(path))
	d.dead.Store(true) // before the copy: what another goroutine writes meanwhile may be missing there, and counts for nobody
	if err := copyTree(d.dir, d.kept); err != nil {
		panic(err) // of the test's own
	}
	return errKilled
}

// copyTree copies a directory of files that only their owner may read.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another goroutine has removed it
		}
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		if e.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return errors.Join(err, os.WriteFile(target, text, 0o600))
	})
}

// pod is a workload: what it was issued last, and the roots that it verifies with.
type pod struct {
	name   string
	chain  []*x509.Certificate
	signer uint64
	roots  *x509.CertPool
	// lost means that the answer to its last request did not arrive: an agent asks again at once.
	lost bool
}

// history is a ca's directory, those whom it has issued certificates, and what it has published, over several
// processes.
type history struct {
	t         *testing.T
	dir       string
	spec      *kinds.Spec
	pods      []*pod
	published map[uint64]string
	newest    uint64
	clock     setClock
}

func newHistory(t *testing.T, spec string) *history {
	t.Helper()
	h := &history{t: t, dir: filepath.Join(t.TempDir(), "ca"), published: map[uint64]string{}}
	h.spec = testkit.Must(kinds.Parse([]byte(strings.ReplaceAll(spec, "DIR", h.dir))))(t)
	testkit.NoError(t, os.Mkdir(h.dir, 0o700))
	for _, name := range []string{"web", "cart"} {
		h.pods = append(h.pods, &pod{name: name})
	}
	return h
}

// life is one process of the ca.
type life struct {
	*history
	disk      *disk
	cfg       Config
	driver    *Driver
	holders   *holders.Registry
	published *trustbundle.Publisher
	stop      func()
}

// start starts the ca; an error is one that it does not start with.
func (h *history) start(d *disk) (_ *life, err error) {
	l := &life{history: h, disk: d}
	file := fileio.FS{Fault: d.fault}
	f := newFixture(h.t)
	_, noJournal := os.Stat(filepath.Join(h.dir, "state.json"))
	l.cfg = f.cfg
	l.cfg.Env.Clock, l.cfg.Env.LeafTTL = &h.clock, 2*time.Hour
	l.holders, err = holders.Open(holders.Config{Dir: filepath.Join(h.dir, "holders"), IssuedBefore: noJournal == nil,
		LongestTTL: l.cfg.Env.LeafTTL, Clock: l.cfg.Env.Clock, Passed: passed(), Log: l.cfg.Log, FS: file})
	if err != nil {
		return nil, err
	}
	l.published = trustbundle.NewPublisher("cluster.local", func(ctx context.Context, own, all []string) (trustbundle.Numbered, error) {
		return l.driver.Number(ctx, own, all)
	})
	l.cfg.Spec = func() (*kinds.Spec, error) { return h.spec, nil }
	l.cfg.Record = record.NewFileOn(file, filepath.Join(h.dir, "state.json"), l.cfg.Env.Clock)
	l.cfg.Authority, l.cfg.Holders, l.cfg.Env.FS = authority.New(l.published), l.holders, file
	l.cfg.First = func(ctx context.Context, roots []string) (uint64, error) {
		return store.Generation(ctx, file, h.dir, roots)
	}
	l.cfg.Env.OpenRoot = func(id uint64, ttl time.Duration) (signer.Issuer, error) {
		root, err := store.Open(context.Background(), store.Config{Dir: filepath.Join(h.dir, fmt.Sprint("root-", id)),
			TrustDomain: l.cfg.Env.TrustDomain, RootTTL: ttl, Now: h.clock.Now(), FS: file})
		if err != nil {
			return nil, err
		}
		return held.New(root.Certificate, root.Key), nil
	}
	registry := testkit.Background(h.t, l.holders.Run)
	if l.driver, err = Open(h.t.Context(), l.cfg); err != nil {
		registry()
		return nil, err
	}
	m := trustbundle.NewManager(trustbundle.ManagerConfig{
		Own: l.driver.Own, Out: func([]byte) error { return nil }, Publisher: l.published, Clock: l.cfg.Env.Clock, Log: l.cfg.Log,
	})
	if err := m.Publish(h.t.Context()); err != nil {
		l.driver.Close()
		registry()
		return nil, err
	}
	manager, driver := testkit.Background(h.t, m.Run), testkit.Background(h.t, l.driver.Run)
	l.stop = func() { manager(); driver(); registry() }
	return l, nil
}

// renew issues a pod's next certificate. It has it unless the process was killed before the answer.
func (l *life) renew(p *pod) {
	l.t.Helper()
	key := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(l.t)
	uri := &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/shop/sa/" + p.name}
	session, err := l.cfg.Authority.Begin()
	testkit.NoError(l.t, err)
	issuer, err := session.Bounds()
	testkit.NoError(l.t, err)
	now := l.clock.Now()
	until := now.Add(time.Hour)
	notBefore := now.Add(-time.Minute)
	if notBefore.Before(issuer.NotBefore) {
		notBefore = issuer.NotBefore
	}
	if !notBefore.Before(until) && now.Before(time.Now()) {
		return // its clock is that far behind: it refuses, and an agent goes on with what it has
	}
	if issuer.NotAfter.Before(until) {
		l.t.Fatalf("the signer ends at %s", issuer.NotAfter)
	}
	issued, err := session.Issue(l.t.Context(), &signer.Request{Template: &x509.Certificate{
		PublicKey: &key.PublicKey, URIs: []*url.URL{uri}, NotBefore: notBefore, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}})
	testkit.NoError(l.t, err)
	leaf := issued.Certificate
	l.holders.Issued(holders.Certificate{
		Fingerprint: holders.FingerprintOf(leaf.Raw), Serial: issued.Serial(), Identity: uri.String(), Pod: "shop/" + p.name, PodUID: p.name,
		Signer: issued.Signer, Epoch: issued.Epoch, Generation: issued.Generation, AuthorityKeyID: leaf.AuthorityKeyId,
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
	})
	if p.lost = l.disk.dead.Load(); p.lost {
		return
	}
	if valid := time.Now(); valid.Before(leaf.NotBefore) || !valid.Before(leaf.NotAfter) {
		return // the ca's clock is wrong: an agent goes on with what it has
	}
	p.chain, p.signer, p.roots = nil, issued.Signer, x509.NewCertPool()
	for _, text := range issued.ChainPEM[:len(issued.ChainPEM)-1] {
		p.chain = append(p.chain, testkit.Must(tlsconf.ParseCertificates([]byte(text)))(l.t)...)
	}
	p.roots.AppendCertsFromPEM([]byte(issued.ChainPEM[len(issued.ChainPEM)-1]))
}

// check holds what must be true at any time: everybody verifies everybody, so does the published bundle, and no number
// stands for two bundles.
func (l *life) check() {
	l.t.Helper()
	b, _ := l.published.Current()
	if l.disk.dead.Load() { // nobody has seen it
		return
	}
	if b.Epoch != 0 {
		l.t.Fatalf("epoch %d", b.Epoch)
	}
	content := fmt.Sprint(b.PEM, b.Tainted)
	if before, known := l.history.published[b.Generation]; known && before != content {
		l.t.Fatalf("generation %d stands for two bundles", b.Generation)
	}
	if b.Generation < l.newest {
		l.t.Fatalf("generation %d after %d", b.Generation, l.newest)
	}
	l.history.published[b.Generation], l.newest = content, b.Generation
	all := x509.NewCertPool()
	all.AppendCertsFromPEM([]byte(b.PEM))
	for _, of := range l.pods {
		if of.chain == nil {
			continue
		}
		verifies := func(who string, roots *x509.CertPool) {
			between := x509.NewCertPool()
			for _, c := range of.chain[1:] {
				between.AddCert(c)
			}
			_, err := of.chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: time.Now(),
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			if err != nil {
				l.t.Fatalf("%s does not verify the certificate of %s, of signer %d: %v", who, of.name, of.signer, err)
			}
		}
		verifies("the published bundle", all)
		for _, by := range l.pods {
			if by.roots != nil {
				verifies(by.name, by.roots)
			}
		}
	}
}

// play has an order carried out from wherever it stands, until its end or the end of the process. It returns true at
// its end.
func (l *life) play(c caapi.Command) bool {
	l.t.Helper()
	for range 300 {
		if l.disk.dead.Load() {
			return false
		}
		l.check()
		s := l.driver.Status()
		for _, p := range l.pods {
			if p.chain == nil || p.lost {
				l.renew(p)
			}
		}
		switch {
		case s.Step == "idle" && s.Signers[0].ID == 2:
			return true
		case s.Step == "idle":
			if err := l.driver.Do(l.t.Context(), c); err != nil && !errors.Is(err, errKilled) {
				l.t.Fatal(err)
			}
		case s.Lagging.Total > 0: // one after the other, so that the others wait
			for _, p := range l.pods {
				if strings.Contains(s.Lagging.First[0].Name, p.name) {
					l.renew(p)
				}
			}
		}
		l.check()
		pass(tick)
	}
	if l.disk.dead.Load() {
		return false
	}
	s := l.driver.Status()
	l.t.Fatalf("stands at %s, waits for %v and %+v, problems %v", s.Step, s.Waits, s.Lagging, s.Problems)
	return false
}

// killedAt plays an order through, in a process that is killed before a step and one that goes on from there. It
// returns false if the first has ended without reaching the step.
func killedAt(t *testing.T, spec string, c caapi.Command, at int) (killed bool) {
	synctest.Test(t, func(t *testing.T) {
		h := newHistory(t, spec)
		c.File = strings.ReplaceAll(c.File, "DIR", h.dir)
		d := &disk{dir: h.dir, kept: filepath.Join(filepath.Dir(h.dir), "kept"), at: at}
		l, err := h.start(d)
		if err != nil && !d.dead.Load() {
			t.Fatal(err)
		}
		if err == nil {
			done := l.play(c)
			l.stop()
			if done {
				return
			}
		}
		killed = true
		defer func() {
			if t.Failed() {
				t.Logf("killed before step %d, %s", at, d.where)
			}
		}()
		testkit.NoError(t, errors.Join(os.RemoveAll(h.dir), os.Rename(d.kept, h.dir)))
		if l, err = h.start(&disk{}); err != nil {
			t.Fatalf("does not start again: %v", err)
		}
		defer l.stop()
		if !l.play(c) {
			t.Fatal("not done")
		}
		for _, p := range h.pods { // and it issues
			l.renew(p)
		}
		l.check()
	})
	return killed
}

// TestAKillAtEveryWriteOfState kills the ca before each step of each write of a start and a rotation, and has another
// process go on with what the disk has.
func TestAKillAtEveryWriteOfState(t *testing.T) {
	const directory = "{apiVersion: ca.fairlead.dev/v1, kind: Signer, name: disk, " +
		"intermediate: {keys: {directory: {dir: DIR/keys}}, ttl: 240h, selfSigned: {ttl: 8760h}}}"
	for name, tc := range map[string]struct {
		spec  string
		order caapi.Command
	}{
		"rotate a root":                  {ownRoot, caapi.Command{Action: caapi.Rotate}},
		"rotate a root of intermediates": {directory, caapi.Command{Action: caapi.Rotate}},
		"swap to intermediates":          {ownRoot, caapi.Command{Action: caapi.Swap, File: directory}},
		"swap to a root":                 {directory, caapi.Command{Action: caapi.Swap, File: ownRoot}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := 1
			for !t.Failed() && killedAt(t, tc.spec, tc.order, at) {
				at++
			}
			t.Logf("killed at each of %d steps", at-1)
			if at < 50 {
				t.Errorf("only %d steps", at-1)
			}
		})
	}
}
