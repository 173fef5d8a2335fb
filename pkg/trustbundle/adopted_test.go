package trustbundle

import (
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/trust"
)

const caID = "spiffe://cluster.local/ns/istio-system/sa/ca"

// bundleOf is a bundle of generation g with the roots of authorities, signed by the ca of the first authority.
func bundleOf(t testing.TB, by *testkit.CA, g uint64, roots ...*testkit.CA) *cav1.SignedBundle {
	t.Helper()
	return signedAs(t, by, "ca", &cav1.TrustBundle{TrustDomain: "cluster.local", Epoch: 1, Generation: g, RootCertificates: derOf(roots...)})
}

func derOf(roots ...*testkit.CA) [][]byte {
	var out [][]byte
	for _, r := range roots {
		out = append(out, r.Cert.Raw)
	}
	return out
}

func signedAs(t testing.TB, by *testkit.CA, account string, b *cav1.TrustBundle, opts ...testkit.Option) *cav1.SignedBundle {
	t.Helper()
	own, err := by.NewSVID("istio-system", account, opts...).Current()
	testkit.NoError(t, err)
	return testkit.Must(trust.Sign(b, own.Certificate))(t)
}

func certs(of ...*testkit.CA) []*x509.Certificate {
	var out []*x509.Certificate
	for _, ca := range of {
		out = append(out, ca.Cert)
	}
	return out
}

func verifierNow() verifier {
	return verifier{cas: []string{caID}, trustDomain: "cluster.local", now: time.Now()}
}

// A step is a bundle that comes, or a new content of the root file.
type step struct {
	file   []*testkit.CA
	bundle *cav1.SignedBundle
	// refused is a part of the reason for which the bundle is refused; "" for one that is adopted.
	refused string
	// roots are trusted afterwards.
	roots []*testkit.CA
}

func TestWhatIsTrustedAfterEachStep(t *testing.T) {
	a, b, c, evil := testkit.PKI(t), testkit.PKI(t), testkit.PKI(t), testkit.PKI(t)
	of := func(cas ...*testkit.CA) []*testkit.CA { return cas }
	for name, steps := range map[string][]step{
		"a rotation: the root file follows late": {
			{file: of(a), roots: of(a)},
			{bundle: bundleOf(t, a, 2, a, b), roots: of(a, b)},
			{file: of(a, b), roots: of(a, b)},
			{bundle: bundleOf(t, b, 3, b), roots: of(b)},
			{file: of(b), roots: of(b)},
		},
		"a retired root does not come back by a file that was late": {
			{file: of(a)},
			{bundle: bundleOf(t, a, 2, a, b), roots: of(a, b)},
			{bundle: bundleOf(t, b, 3, b), roots: of(b)},
			{file: of(a, b), roots: of(b)},
		},
		"an operator adds a root to the file, until the next bundle": {
			{file: of(a)},
			{bundle: bundleOf(t, a, 2, a), roots: of(a)},
			{file: of(a, c), roots: of(a, c)},
			{bundle: bundleOf(t, a, 2, a), roots: of(a, c)}, // the same one, signed again
			{bundle: bundleOf(t, a, 3, a), roots: of(a)},
		},
		"a machine moves to another mesh, whose generations are smaller": {
			{file: of(a)},
			{bundle: bundleOf(t, a, 20, a), roots: of(a)},
			{bundle: bundleOf(t, c, 3, c), refused: "nobody whom", roots: of(a)},
			{file: of(c), roots: of(a, c)},
			{bundle: bundleOf(t, c, 3, c), roots: of(c)},
			{bundle: bundleOf(t, a, 21, a), refused: "nobody whom", roots: of(c)},
		},
		"an old bundle comes again": {
			{file: of(a)},
			{bundle: bundleOf(t, a, 2, a, b), roots: of(a, b)},
			{bundle: bundleOf(t, a, 1, a), refused: "is older than generation 2", roots: of(a, b)},
			{bundle: bundleOf(t, b, 3, b), roots: of(b)},
			{bundle: bundleOf(t, a, 2, a, b), refused: "nobody whom", roots: of(b)},
			{file: of(a, b), roots: of(b)},
			{bundle: bundleOf(t, b, 2, a, b), refused: "is older than generation 3", roots: of(b)},
		},
		"a bundle that was not adopted counts for nothing": {
			{file: of(a)},
			{bundle: bundleOf(t, evil, 2, a, evil), refused: "nobody whom", roots: of(a)},
			{bundle: bundleOf(t, evil, 3, evil), refused: "nobody whom", roots: of(a)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var k known
			for i, s := range steps {
				if s.file != nil {
					k.file = certs(s.file...)
				}
				if s.bundle != nil {
					got, err := k.take(s.bundle, verifierNow())
					if (err == nil) != (s.refused == "") || err != nil && !strings.Contains(err.Error(), s.refused) {
						t.Fatalf("step %d: %v, want %q", i, err, s.refused)
					}
					if err == nil {
						k.adopted = got
					}
				}
				if s.roots != nil && !sumsOf(k.roots()).equal(sumsOf(certs(s.roots...))) {
					t.Errorf("step %d: %d roots, which are not the %d wanted", i, len(k.roots()), len(s.roots))
				}
			}
		})
	}
}

// What an xds-server in the wrong hands can send changes nothing.
func TestAttacks(t *testing.T) {
	a, evil := testkit.PKI(t), testkit.PKI(t)
	good := bundleOf(t, a, 5, a)
	text := func(mutate func(*cav1.TrustBundle)) *cav1.TrustBundle {
		b := &cav1.TrustBundle{}
		testkit.NoError(t, proto.Unmarshal(good.GetBundle(), b))
		b.Generation, b.RootCertificates = 6, derOf(a, evil)
		mutate(b)
		return b
	}
	nothing := func(*cav1.TrustBundle) {}
	for name, tc := range map[string]struct {
		s    *cav1.SignedBundle
		says string
	}{
		"unsigned": {&cav1.SignedBundle{Bundle: testkit.Must(proto.Marshal(text(nothing)))(t)}, "0 certificates"},
		"a root more below the old signature": {&cav1.SignedBundle{Bundle: testkit.Must(proto.Marshal(text(nothing)))(t),
			Signature: good.GetSignature(), CertificateChain: good.GetCertificateChain()}, "signature is not"},
		"a foreign signer":               {signedAs(t, evil, "ca", text(nothing)), "nobody whom"},
		"the xds-server's own signature": {signedAs(t, a, "xds-server", text(nothing)), "which is not the ca"},
		"the old generation":             {bundleOf(t, a, 4, a, evil), "is older than"},
		"another trust domain":           {signedAs(t, a, "ca", text(func(b *cav1.TrustBundle) { b.TrustDomain = "other" })), "trust domain"},
		"no roots":                       {signedAs(t, a, "ca", text(func(b *cav1.TrustBundle) { b.RootCertificates = nil })), "0 roots"},
		"an expired ca": {signedAs(t, a, "ca", text(nothing), testkit.Valid(time.Now().Add(-time.Hour), time.Now().Add(-time.Minute))),
			"nobody whom"},
	} {
		t.Run(name, func(t *testing.T) {
			k := known{file: certs(a)}
			k.adopted = testkit.Must(k.take(good, verifierNow()))(t)
			if got, err := k.take(tc.s, verifierNow()); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, %v; want an error with %q", got, err, tc.says)
			}
		})
	}
}

func TestRenewalsOfTaintedCertificatesAreSpread(t *testing.T) {
	ca, other := testkit.PKI(t), testkit.PKI(t)
	leaf := func() *x509.Certificate {
		return testkit.Must(ca.NewSVID("shop", "web").Current())(t).Certificate.Leaf
	}
	first, second := leaf(), leaf()
	now := time.Unix(1e9, 0)
	tainted := [][]byte{other.Cert.SubjectKeyId, ca.Cert.SubjectKeyId}
	if !slices.Equal(first.AuthorityKeyId, ca.Cert.SubjectKeyId) {
		t.Fatal("the test's certificates have no key identifier of their authority")
	}
	for name, tc := range map[string]struct {
		leaf    *x509.Certificate
		tainted [][]byte
	}{
		"no certificate yet": {nil, tainted},
		"nothing is tainted": {first, nil},
		"another is tainted": {first, tainted[:1]},
		"an empty identity":  {&x509.Certificate{}, [][]byte{nil, {}}},
	} {
		if got := (renewal{of: second, again: 3}).next(tc.leaf, tc.tainted, now, 0.5); got != (renewal{}) {
			t.Errorf("%s: renewed at %v", name, got.due)
		}
	}
	for random, want := range map[float64]time.Duration{0: 0, 0.5: 15 * time.Second, 0.999: 30 * time.Second} {
		if got := (renewal{}).next(first, tainted, now, random).due.Sub(now).Round(time.Second); got != want {
			t.Errorf("%v: renewed after %s, want %s", random, got, want)
		}
	}
	r := renewal{}.next(first, tainted, now, 0.5)
	if again := r.next(first, tainted, now.Add(time.Second), 0.1); again != r {
		t.Error("the time changes although certificate and taint are the same")
	}
	r.due = time.Time{} // ordered
	if again := r.next(first, tainted, now, 0.1); !again.due.IsZero() {
		t.Error("ordered twice")
	}
	// The ca goes on to issue below the tainted authority.
	last := time.Duration(0)
	for i := range 20 {
		r = r.next([]*x509.Certificate{second, first}[i%2], tainted, now, 0)
		wait := r.due.Sub(now)
		if wait < last || wait < spread/2 || wait > maxSpread {
			t.Fatalf("attempt %d after %s, the one before after %s", i, wait, last)
		}
		last = wait
	}
	if last != maxSpread/2 {
		t.Errorf("at last after %s", last)
	}
}
