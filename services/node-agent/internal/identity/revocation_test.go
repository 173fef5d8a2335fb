package identity

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

// listOfCA makes a list of a CA in DER, valid from an hour before now to a time after it.
func listOfCA(t *testing.T, ca *testkit.CA, now time.Time, until time.Duration, change func(*x509.RevocationList)) []byte {
	t.Helper()
	l := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: now.Add(-time.Hour), NextUpdate: now.Add(until)}
	if change != nil {
		change(l)
	}
	der, err := x509.CreateRevocationList(rand.Reader, l, ca.Cert, ca.Key)
	testkit.NoError(t, err)
	return der
}

// Once Envoy has a list, it refuses every certificate below an authority without one, so that it gets all or none.
func TestListsOfTheBundleAreUsedAllOrNone(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	own, other := testkit.PKI(t), testkit.PKI(t)
	m, err := own.NewSVID("shop", "web").Current()
	testkit.NoError(t, err)
	two, err := tlsconf.NewMaterial(nil, nil, append(append([]byte{}, own.RootPEM...), other.RootPEM...))
	testkit.NoError(t, err)
	critical := []pkix.Extension{{Id: []int{2, 5, 29, 28}, Critical: true, Value: []byte{0x30, 0}}}
	good, goodOther := listOfCA(t, own, now, 2*time.Hour, nil), listOfCA(t, other, now, 3*time.Hour, nil)
	for name, tc := range map[string]struct {
		m     *tlsconf.Material
		lists [][]byte
		used  int
		until time.Duration // after now; 0 for never
		words string
	}{
		"of the one root":             {m, [][]byte{good}, 1, 2*time.Hour - listMargin, ""},
		"of both roots":               {two, [][]byte{good, goodOther}, 2, 2*time.Hour - listMargin, ""},
		"of a root that is not there": {m, [][]byte{good, goodOther}, 2, 2*time.Hour - listMargin, ""},
		"of one of two roots":         {two, [][]byte{good}, 0, 0, "has no list"},
		"of nobody that is known":     {m, [][]byte{goodOther}, 0, 0, "has no list"},
		"ended":                       {m, [][]byte{listOfCA(t, own, now, 0, nil)}, 0, 0, "has ended"},
		"ends soon":                   {m, [][]byte{listOfCA(t, own, now, listMargin, nil)}, 0, 0, "has ended"},
		"one of two has ended":        {two, [][]byte{good, listOfCA(t, other, now, 0, nil)}, 0, 0, "list 2"},
		"not valid yet": {m, [][]byte{listOfCA(t, own, now, 3*time.Hour, func(l *x509.RevocationList) { l.ThisUpdate = now.Add(time.Hour) })},
			0, time.Hour, "is valid from"},
		"a critical extension": {m, [][]byte{listOfCA(t, own, now, time.Hour, func(l *x509.RevocationList) { l.ExtraExtensions = critical })},
			0, 0, "2.5.29.28"},
		"a critical extension of an entry": {m, [][]byte{listOfCA(t, own, now, time.Hour, func(l *x509.RevocationList) {
			l.RevokedCertificateEntries = []x509.RevocationListEntry{
				{SerialNumber: big.NewInt(5), RevocationTime: now, ExtraExtensions: critical}}
		})}, 0, 0, "2.5.29.28"},
		"no list": {m, [][]byte{{1, 2}}, 0, 0, "list 1"},
	} {
		t.Run(name, func(t *testing.T) {
			crl, until, err := usable(tc.lists, tc.m, now)
			if n := strings.Count(string(crl), "BEGIN X509 CRL"); n != tc.used {
				t.Errorf("%d lists are used, want %d", n, tc.used)
			}
			if (err == nil) != (tc.words == "") || err != nil && !strings.Contains(err.Error(), tc.words) {
				t.Errorf("error %v, want %q", err, tc.words)
			}
			if tc.until == 0 && !until.IsZero() || tc.until > 0 && !until.Equal(now.Add(tc.until)) {
				t.Errorf("until %v", until)
			}
		})
	}
}

// A list that ends is taken away in time, without any news, and the file of the operator counts in its place.
func TestAListThatEndsIsTakenAway(t *testing.T) {
	start := time.Now().Truncate(time.Second)
	clock := testkit.NewClock(start)
	own := testkit.PKI(t)
	lists := [][]byte{listOfCA(t, own, start, time.Hour, nil)}
	reg := prometheus.NewRegistry()
	b, err := newBundle(bundleConfig{Source: own.NewSVID("shop", "web"), TrustDomains: []string{"cluster.local"}, Log: testkit.Logger(t),
		Clock:      clock,
		Registerer: reg, Revocations: func() [][]byte { return lists }})
	testkit.NoError(t, err)
	v := b.Validation()
	want := pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: lists[0]})
	if string(v.GetCrl().GetInlineBytes()) != string(want) || len(v.GetTrustedCa().GetInlineBytes()) == 0 {
		t.Fatalf("validation %v", v)
	}
	if used, unusable := testutil.ToFloat64(b.lists.used), testutil.ToFloat64(b.lists.unusable); used != 1 || unusable != 0 {
		t.Errorf("gauges %v and %v", used, unusable)
	}
	changed := b.Changed()
	testkit.Background(t, func(ctx context.Context) error {
		b.followLists(ctx)
		return nil
	})
	clock.WaitFor(t, 1)
	clock.Advance(time.Hour - listMargin - time.Second)
	select {
	case <-changed:
		t.Error("it is taken away too early")
	case <-time.After(10 * time.Millisecond):
	}
	clock.Advance(time.Second)
	select {
	case <-changed:
	case <-time.After(testkit.Patience):
		t.Fatal("nobody was told that it ends")
	}
	if v := b.Validation(); v != nil {
		t.Errorf("a list that ends is used: %v", v)
	}
	if used, unusable := testutil.ToFloat64(b.lists.used), testutil.ToFloat64(b.lists.unusable); used != 0 || unusable != 1 {
		t.Errorf("gauges %v and %v", used, unusable)
	}
	b.mu.Lock()
	b.revocations = []byte("the operator's")
	b.mu.Unlock()
	if got := string(b.Validation().GetCrl().GetInlineBytes()); got != "the operator's" {
		t.Errorf("the list is %q", got)
	}
}
