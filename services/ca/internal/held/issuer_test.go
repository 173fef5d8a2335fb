package held

import (
	"context"
	"crypto"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/catest"
	"fairlead.dev/services/ca/internal/signer"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// newCA makes a root, or below a parent an intermediate, valid around noon for the time.
func newCA(t testing.TB, parent *catest.CA, key crypto.Signer, valid time.Duration) *catest.CA {
	t.Helper()
	return catest.NewCA(t, parent, key, catest.Valid(noon.Add(-valid), noon.Add(valid)))
}

// Any key signs leaves of any key, and what comes out passes the check of every signer.
func TestIssue(t *testing.T) {
	keys := map[string]crypto.Signer{
		"P-256": catest.Key(t), "P-384": catest.CurveKey(t, elliptic.P384()), "RSA": catest.RSAKey(t, 2048),
	}
	want := map[string]x509.SignatureAlgorithm{"P-256": x509.ECDSAWithSHA256, "P-384": x509.ECDSAWithSHA384, "RSA": x509.SHA256WithRSA}
	for kind, key := range keys {
		for leafKind, leafKey := range keys {
			t.Run(leafKind+" below "+kind, func(t *testing.T) {
				root := newCA(t, nil, catest.Key(t), 3*time.Hour)
				middle := newCA(t, root, catest.Key(t), 2*time.Hour)
				issuing := newCA(t, middle, key, time.Hour)
				s, err := NewIssuer(Authority{
					Certificate: issuing.Cert, Key: key, Chain: []*x509.Certificate{middle.Cert}, Roots: []*x509.Certificate{root.Cert},
				})
				testkit.NoError(t, err)
				a, _ := s.Authorities()
				if !a.NotAfter.Equal(issuing.Cert.NotAfter) || !a.NotBefore.Equal(issuing.Cert.NotBefore) {
					t.Errorf("valid from %s until %s", a.NotBefore, a.NotAfter)
				}
				r := &signer.Request{Template: template(t, noon)}
				r.Template.PublicKey = leafKey.Public()
				chain, err := s.Issue(context.Background(), r)
				testkit.NoError(t, err)
				if len(chain) != 3 || !chain[1].Equal(issuing.Cert) || !chain[2].Equal(middle.Cert) {
					t.Errorf("a chain of %d", len(chain))
				}
				if got := chain[0].SignatureAlgorithm; got != want[kind] {
					t.Errorf("signed with %s", got)
				}
				if err := signer.Check(r, s.Capabilities(), chain, catest.Pool(root.Cert), noon); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestNewIssuerRefuses(t *testing.T) {
	root := newCA(t, nil, catest.Key(t), time.Hour)
	issuing, other := newCA(t, root, catest.Key(t), time.Hour), newCA(t, nil, catest.Key(t), time.Hour)
	for name, a := range map[string]Authority{
		"no certificate":            {Key: issuing.Key, Roots: []*x509.Certificate{root.Cert}},
		"no key":                    {Certificate: issuing.Cert, Roots: []*x509.Certificate{root.Cert}},
		"no root":                   {Certificate: issuing.Cert, Key: issuing.Key},
		"another certificate's key": {Certificate: issuing.Cert, Key: root.Key, Roots: []*x509.Certificate{root.Cert}},
		"a chain to no root":        {Certificate: issuing.Cert, Key: issuing.Key, Roots: []*x509.Certificate{other.Cert}},
	} {
		if _, err := NewIssuer(a); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// A cross-signed root has two ways; leaves may live as long as the one that ends last.
func TestValidityIsThatOfTheBestPath(t *testing.T) {
	older := newCA(t, nil, catest.Key(t), time.Hour)
	newer := newCA(t, nil, catest.Key(t), 5*time.Hour)
	cross := *newer.Cert
	cross.NotAfter = older.Cert.NotAfter
	crossed := older.Sign(t, &cross, newer.Key.Public())
	issuing := newCA(t, newer, catest.Key(t), 4*time.Hour)
	for name, tc := range map[string]struct {
		roots []*x509.Certificate
		want  time.Time
	}{
		"both roots": {[]*x509.Certificate{older.Cert, newer.Cert}, issuing.Cert.NotAfter},
		"newer only": {[]*x509.Certificate{newer.Cert}, issuing.Cert.NotAfter},
		"older only": {[]*x509.Certificate{older.Cert}, older.Cert.NotAfter},
	} {
		s, err := NewIssuer(Authority{Certificate: issuing.Cert, Key: issuing.Key, Chain: []*x509.Certificate{crossed}, Roots: tc.roots})
		testkit.NoError(t, err)
		if a, _ := s.Authorities(); !a.NotAfter.Equal(tc.want) {
			t.Errorf("%s: valid until %s, want %s", name, a.NotAfter, tc.want)
		}
	}
}

func TestIssueErrors(t *testing.T) {
	root := newCA(t, nil, catest.Key(t), time.Hour)
	s := New(root.Cert, root.Key)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	late := template(t, noon)
	late.NotAfter = root.Cert.NotAfter.Add(time.Second)
	broken := New(root.Cert, brokenKey{root.Key, errors.New("the token was removed")})
	away := New(root.Cert, brokenKey{root.Key, signer.Errorf(signer.Busy, "no session")})
	for name, tc := range map[string]struct {
		ctx   context.Context //nolint:containedctx // of a table
		s     *Signer
		r     *signer.Request
		fault signer.Fault
	}{
		"ended":             {ended, s, &signer.Request{Template: template(t, noon)}, signer.Away},
		"outlives":          {context.Background(), s, &signer.Request{Template: late}, signer.Refused},
		"key fails":         {context.Background(), broken, &signer.Request{Template: template(t, noon)}, signer.Away},
		"key fails, by why": {context.Background(), away, &signer.Request{Template: template(t, noon)}, signer.Busy},
	} {
		_, err := tc.s.Issue(tc.ctx, tc.r)
		if known, ok := errors.AsType[*signer.Error](err); !ok || known.Fault != tc.fault {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// brokenKey signs nothing.
type brokenKey struct {
	crypto.Signer
	err error
}

func (k brokenKey) Sign(_ io.Reader, _ []byte, _ crypto.SignerOpts) ([]byte, error) {
	return nil, k.err
}

func TestRotating(t *testing.T) {
	var r Rotating
	a, changed := r.Authorities()
	if _, err := r.Issue(context.Background(), &signer.Request{}); a != nil || !errors.Is(err, ErrNoSigner) {
		t.Fatalf("%v, %v before there is a signer", a, err)
	}
	long, short := newCA(t, nil, catest.Key(t), 3*time.Hour), newCA(t, nil, catest.Key(t), time.Hour)
	r.Set(New(long.Cert, long.Key))
	<-changed
	_, changed = r.Authorities()
	r.Set(New(short.Cert, short.Key))
	<-changed
	for life, want := range map[time.Duration]*catest.CA{time.Minute: short, 2 * time.Hour: long} {
		req := &signer.Request{Template: template(t, noon)}
		req.Template.NotAfter = noon.Add(life)
		chain, err := r.Issue(context.Background(), req)
		testkit.NoError(t, err)
		if err := chain[0].CheckSignatureFrom(want.Cert); err != nil {
			t.Errorf("%s: %v", life, err)
		}
	}
}

// BenchmarkIssue is what one leaf takes; BenchmarkFloor is CreateCertificate alone.
func BenchmarkIssue(b *testing.B) {
	s, r := benchmarked(b)
	for b.Loop() {
		if _, err := s.Issue(context.Background(), r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFloor(b *testing.B) {
	s, r := benchmarked(b)
	numbered := *r.Template
	numbered.SerialNumber = big.NewInt(1)
	for b.Loop() {
		if _, err := x509.CreateCertificate(rand.Reader, &numbered, s.issuer, numbered.PublicKey, s.key); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarked(b *testing.B) (*Signer, *signer.Request) {
	b.Helper()
	root := newCA(b, nil, catest.Key(b), 2*time.Hour)
	issuing := newCA(b, root, catest.Key(b), time.Hour)
	s, err := NewIssuer(Authority{Certificate: issuing.Cert, Key: issuing.Key, Roots: []*x509.Certificate{root.Cert}})
	testkit.NoError(b, err)
	return s, &signer.Request{Template: template(b, noon)}
}
