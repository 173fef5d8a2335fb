package trustbundle

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/trust"
)

// fixture makes the Roots of one agent, again and again.
type fixture struct {
	t   *testing.T
	cfg Config
}

func newFixture(t *testing.T, root *testkit.CA) *fixture {
	dir := t.TempDir()
	return &fixture{t, Config{Metrics: "fairlead_node_agent", RootFile: root.WriteRoot(dir), Path: filepath.Join(dir, "trust.json"),
		CAs:         []string{caID},
		TrustDomain: "cluster.local", Log: testkit.Logger(t)}}
}

func (f *fixture) start() *Roots {
	f.cfg.Registerer = prometheus.NewRegistry()
	r := New(f.cfg)
	testkit.Background(f.t, r.Run)
	return r
}

func (f *fixture) take(r *Roots, s *cav1.SignedBundle) error {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	return r.Take(ctx, testkit.Must(anypb.New(s))(f.t))
}

// want waits until the roots are those of cas.
func (f *fixture) want(r *Roots, cas ...*testkit.CA) {
	f.t.Helper()
	testkit.Eventually(f.t, testkit.Patience, func() error {
		m, err := r.Current()
		if err != nil {
			return err
		}
		if got := testkit.Must(tlsconf.ParseAuthorities(m.RootsPEM))(f.t); !sumsOf(got).equal(sumsOf(certs(cas...))) {
			return errors.New("the roots are others")
		}
		return nil
	})
}

func (f *fixture) write(cas ...*testkit.CA) {
	f.t.Helper()
	var text []byte
	for _, ca := range cas {
		text = append(text, ca.RootPEM...)
	}
	testkit.WriteFile(f.t, f.cfg.RootFile, text)
}

func TestAdoptedRootsSurviveARestart(t *testing.T) {
	a, b, c := testkit.PKI(t), testkit.PKI(t), testkit.PKI(t)
	f := newFixture(t, a)
	r := f.start()
	changed := r.Changed()
	testkit.NoError(t, f.take(r, bundleOf(t, a, 2, a, b)))
	<-changed
	testkit.NoError(t, f.take(r, bundleOf(t, b, 3, b)))
	if got := testutil.ToFloat64(r.generation); got != 3 {
		t.Errorf("generation %v", got)
	}
	f.want(r, b)
	if info := testkit.Must(os.Stat(f.cfg.Path))(t); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}

	// The root file still has the root that is retired, and the certificate that signed expires meanwhile.
	clock := testkit.NewClock(time.Now().Add(48 * time.Hour))
	f.cfg.Clock = clock
	r = f.start()
	f.want(r, b)
	if got := testutil.ToFloat64(r.generation); got != 3 {
		t.Errorf("generation %v after the restart", got)
	}
	if err := f.take(r, bundleOf(t, b, 2, a, b)); err == nil {
		t.Error("an older bundle is taken after the restart")
	}
	// The operator moves the machine while its agent is stopped.
	f.cfg.Clock = nil
	f.write(c)
	r = f.start()
	f.want(r, b, c)
	testkit.NoError(t, f.take(r, bundleOf(t, c, 1, c)))
	f.want(r, c)
	f.want(f.start(), c)
}

// The roots of a bundle that are those of the root file change nothing that depends on them.
func TestSameRootsAreTheSameMaterial(t *testing.T) {
	a, b := testkit.PKI(t), testkit.PKI(t)
	f := newFixture(t, a)
	f.write(b, a)
	r := f.start()
	before := testkit.Must(r.Current())(t)
	testkit.NoError(t, f.take(r, bundleOf(t, a, 2, a, b)))
	if after := testkit.Must(r.Current())(t); after != before {
		t.Error("other material for the same roots")
	}
	testkit.NoError(t, f.take(r, bundleOf(t, a, 3, a)))
	first := testkit.Must(r.Current())(t)
	testkit.NoError(t, f.take(r, bundleOf(t, a, 4, a)))
	if testkit.Must(r.Current())(t) != first {
		t.Error("other material for the same roots of two bundles")
	}
}

// A file that is damaged, of another mesh, or that others may have written is not used, and the root file is.
func TestDamagedFilesAreNotUsed(t *testing.T) {
	a, b := testkit.PKI(t), testkit.PKI(t)
	f := newFixture(t, a)
	testkit.NoError(t, f.take(f.start(), bundleOf(t, a, 2, a, b)))
	good := testkit.Must(os.ReadFile(f.cfg.Path))(t)
	edit := func(change func(*stored)) []byte {
		s := stored{}
		testkit.NoError(t, json.Unmarshal(good, &s))
		change(&s)
		return testkit.Must(json.Marshal(s))(t)
	}
	for name, text := range map[string][]byte{
		"empty":              nil,
		"half":               good[:len(good)/2],
		"no JSON":            []byte("x"),
		"another signature":  edit(func(s *stored) { s.SignedBundle[len(s.SignedBundle)/2] ^= 1 }),
		"no roots before it": edit(func(s *stored) { s.VerifiedBy = nil }),
		"other roots":        edit(func(s *stored) { s.VerifiedBy = derOf(b) }),
		"no certificate":     edit(func(s *stored) { s.VerifiedBy[0] = []byte{1} }),
		"another time":       edit(func(s *stored) { s.AdoptedAt = time.Unix(0, 0) }),
		"a short hash":       edit(func(s *stored) { s.RootFile[0] = []byte{1} }),
		"megabytes":          make([]byte, maxStored+1),
	} {
		testkit.WriteFile(t, f.cfg.Path, text)
		r := f.start()
		if m := testkit.Must(r.Current())(t); string(m.RootsPEM) != string(a.RootPEM) {
			t.Errorf("%s: used", name)
		}
		if r.Tainted() != nil {
			t.Errorf("%s: tainted", name)
		}
	}
	testkit.WriteFile(t, f.cfg.Path, good)
	testkit.NoError(t, os.Chmod(f.cfg.Path, 0o620))
	f.want(f.start(), a)
	testkit.NoError(t, os.Chmod(f.cfg.Path, 0o600))
	f.cfg.TrustDomain = "other.example"
	f.want(f.start(), a)
}

func TestFileThatCannotBeWrittenStopsNothing(t *testing.T) {
	a, b := testkit.PKI(t), testkit.PKI(t)
	f := newFixture(t, a)
	f.cfg.Path = filepath.Join(t.TempDir(), "absent", "trust.json")
	r := f.start()
	testkit.NoError(t, f.take(r, bundleOf(t, a, 2, a, b)))
	f.want(r, a, b)
	f.cfg.Path = ""
	f.want(f.start(), a)
}

// Refused bundles are counted, logged once, and cost no more than one attempt a second; the good one after them is
// adopted.
func TestAttemptsAreBounded(t *testing.T) {
	a, b, evil := testkit.PKI(t), testkit.PKI(t), testkit.PKI(t)
	f := newFixture(t, a)
	clock := testkit.NewClock(time.Now())
	f.cfg.Clock = clock
	r := f.start()
	huge := &cav1.SignedBundle{Signature: make([]byte, trust.MaxBytes)}
	if err := f.take(r, huge); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("got %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.take(r, bundleOf(t, evil, 2, a, evil)) }()
	clock.WaitFor(t, 2) // the root file's follower waits, too
	select {
	case err := <-ended:
		t.Fatalf("the second attempt is made at once: %v", err)
	default:
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Take(ctx, testkit.Must(anypb.New(huge))(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v while another attempt is made", err)
	}
	clock.Advance(failedPause)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "nobody whom") {
		t.Errorf("got %v", err)
	}
	if got := testutil.ToFloat64(r.failures); got != 2 {
		t.Errorf("%v failures", got)
	}
	clock.Advance(failedPause)
	testkit.NoError(t, f.take(r, bundleOf(t, a, 2, a, b)))
	f.want(r, a, b)
	clock.Advance(failedPause)
	long := signedAs(t, a, "ca", &cav1.TrustBundle{TrustDomain: strings.Repeat("ö", 100_000), RootCertificates: derOf(a)})
	if err := f.take(r, long); err == nil || len(err.Error()) > maxReason+10 {
		t.Errorf("a reason of %d bytes", len(err.Error()))
	}
	wrong := testkit.Must(anypb.New(&cav1.TrustBundle{}))(t)
	clock.Advance(failedPause)
	if err := r.Take(t.Context(), wrong); err == nil {
		t.Error("another type is taken")
	}
}

// An agent that has missed a rotation refuses the bundle, and adopts it when the root file has the new root. The root
// that is retired is gone then.
func TestMissedRotationIsMadeUpByTheFile(t *testing.T) {
	a, b := testkit.PKI(t), testkit.PKI(t)
	f := newFixture(t, a)
	r := f.start()
	testkit.NoError(t, f.take(r, bundleOf(t, a, 1, a)))
	missed := bundleOf(t, b, 3, b)
	if err := f.take(r, missed); err == nil || !strings.Contains(err.Error(), "nobody whom") {
		t.Errorf("got %v", err)
	}
	f.write(a, b)
	f.want(r, b)
	testkit.NoError(t, f.take(r, missed)) // the next stream brings it
	if got := testutil.ToFloat64(r.failures); got != 1 {
		t.Errorf("%v failures", got)
	}
	f.want(f.start(), b)
}

// Without a root file there is nothing to verify a bundle with.
func TestNoRootsNoBundle(t *testing.T) {
	a := testkit.PKI(t)
	f := newFixture(t, a)
	f.cfg.RootFile = filepath.Join(t.TempDir(), "absent.pem")
	r := f.start()
	if err := f.take(r, bundleOf(t, a, 2, a)); err == nil || !strings.Contains(err.Error(), "absent.pem") {
		t.Errorf("got %v", err)
	}
	testkit.WriteFile(t, f.cfg.RootFile, a.RootPEM)
	f.want(r, a)
	testkit.NoError(t, f.take(r, bundleOf(t, a, 2, a)))
	testkit.NoError(t, os.Remove(f.cfg.RootFile))
	f.want(f.start(), a) // the kept bundle alone serves
}

// A tainted certificate is renewed once, after at most half a minute, and again if the next one is tainted as well.
func TestTaintedCertificateIsRenewed(t *testing.T) {
	a, b := testkit.PKI(t), testkit.PKI(t)
	f := newFixture(t, a)
	clock := testkit.NewClock(time.Now())
	f.cfg.Clock = clock
	r := f.start()
	own := a.NewSVID("shop", "web")
	renewed := make(chan struct{}, 10)
	testkit.Background(t, r.RenewTainted(own, func() { renewed <- struct{}{} }))
	testkit.NoError(t, f.take(r, signedAs(t, a, "ca", &cav1.TrustBundle{TrustDomain: "cluster.local", Generation: 1,
		RootCertificates: derOf(a, b), TaintedKeyIds: [][]byte{a.Cert.SubjectKeyId}})))
	order := func() {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			clock.Advance(spread)
			select {
			case <-renewed:
				return nil
			default:
				return errors.New("not renewed")
			}
		})
	}
	order()
	own.Set(testkit.Must(a.NewSVID("shop", "web").Current())(t)) // the ca issues below the tainted authority still
	order()
	own.Set(testkit.Must(b.NewSVID("shop", "web").Current())(t))
	time.Sleep(50 * time.Millisecond)
	for range 100 {
		clock.Advance(spread)
	}
	time.Sleep(50 * time.Millisecond)
	if len(renewed) > 0 {
		t.Error("renewed although the authority is not tainted")
	}
}

func FuzzDecode(f *testing.F) {
	a, b := testkit.PKI(f), testkit.PKI(f)
	k := known{file: certs(a)}
	s := bundleOf(f, a, 2, a, b)
	got := testkit.Must(k.take(s, verifierNow()))(f)
	got.signed = testkit.Must(anypb.New(s))(f).GetValue()
	f.Add(testkit.Must(encode(got))(f))
	f.Fuzz(func(t *testing.T, text []byte) {
		v := verifierNow()
		if out, err := decode(text, v); err == nil && (len(out.roots) == 0 || len(out.by) == 0) {
			t.Error("adopted without roots")
		}
	})
}
