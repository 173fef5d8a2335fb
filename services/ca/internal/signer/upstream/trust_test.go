package upstream

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer/signertest"
)

func TestTrustLearnsTheIntermediateOfAnswers(t *testing.T) {
	clock := testkit.NewClock(time.Now())
	trust := NewTrust(clock)
	if a, _ := trust.Authorities(); a != nil {
		t.Fatal("something is trusted before anything is known")
	}
	one, two := signertest.NewCA(t, "one"), signertest.NewCA(t, "two")
	r, _ := signertest.Request(t)
	trust.Learn(one.Sign(t, r.Template)) // nothing to learn for
	testkit.NoError(t, trust.Set([]*x509.Certificate{one.Root}, nil, nil))
	_, changed := trust.Authorities()

	foreign := two.Sign(t, r.Template)
	trust.Learn(foreign)
	trust.Learn([]*x509.Certificate{one.Root}) // a root in the place of a leaf
	if a, _ := trust.Authorities(); a.Intermediates != nil || closed(changed) {
		t.Fatalf("learned of a chain that no root verifies: %v", a.Intermediates)
	}
	clock.Advance(learnEvery)
	trust.Learn(one.Sign(t, r.Template))
	a, changed := trust.Authorities()
	if len(a.Intermediates) != 1 || !a.Intermediates[0].Equal(one.Intermediate) || !a.NotAfter.Equal(one.Intermediate.NotAfter) {
		t.Fatalf("not learned: %v", a)
	}
	// The same roots again, and the same chain, change nothing.
	testkit.NoError(t, trust.Set([]*x509.Certificate{one.Root}, nil, nil))
	trust.Learn(one.Sign(t, r.Template))
	if again, _ := trust.Authorities(); again != a || closed(changed) {
		t.Error("the same answer changed something")
	}
	// Another root beside it, and an answer by it: taken, but not at once.
	testkit.NoError(t, trust.Set([]*x509.Certificate{one.Root, two.Root}, nil, nil))
	trust.Learn(one.Sign(t, r.Template))
	trust.Learn(foreign)
	if a, _ = trust.Authorities(); !a.Intermediates[0].Equal(one.Intermediate) {
		t.Error("answers change what is known more often than every ten seconds")
	}
	clock.Advance(learnEvery)
	trust.Learn(foreign)
	if a, _ = trust.Authorities(); !a.Intermediates[0].Equal(two.Intermediate) {
		t.Error("the other intermediate was not learned")
	}
}

func TestTrustTakesOnlyRootsThatCount(t *testing.T) {
	clock := testkit.NewClock(time.Now())
	trust := NewTrust(clock)
	old, next := testkit.NewCA(t, "cluster.local", time.Now().AddDate(-10, 0, 1)), testkit.NewCA(t, "cluster.local", time.Now())
	later := testkit.NewCA(t, "cluster.local", time.Now().AddDate(0, 0, 5))
	testkit.NoError(t, trust.Set([]*x509.Certificate{old.Cert, next.Cert, later.Cert}, nil, nil))
	if a, _ := trust.Authorities(); len(a.Roots) != 3 || !a.NotAfter.Equal(old.Cert.NotAfter) || !a.NotBefore.Equal(next.Cert.NotBefore) {
		t.Errorf("the first that ends counts, and not the one that has not begun: %v", a)
	}
	clock.Advance(3 * 24 * time.Hour)
	testkit.NoError(t, trust.Set([]*x509.Certificate{old.Cert, next.Cert}, nil, nil))
	if a, _ := trust.Authorities(); len(a.Roots) != 1 || !a.Roots[0].Equal(next.Cert) {
		t.Errorf("one that has expired is announced: %v", a)
	}
	for says, roots := range map[string][]*x509.Certificate{
		"not expired": {old.Cert}, "is valid before": {testkit.NewCA(t, "cluster.local", time.Now().AddDate(1, 0, 0)).Cert}, "no root": nil,
	} {
		if err := trust.Set(roots, nil, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
