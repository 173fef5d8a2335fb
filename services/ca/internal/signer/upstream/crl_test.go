package upstream

import (
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer/signertest"
)

func TestListsOfRevokedCertificates(t *testing.T) {
	clock := testkit.NewClock(time.Now())
	trust := NewTrust(clock)
	ca, other := signertest.NewCA(t, "one"), signertest.NewCA(t, "two")
	list := func(by *signertest.CA) []byte {
		return testkit.Must(x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
			Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour),
		}, by.Intermediate, by.Key))(t)
	}
	own := list(ca)
	if trust.SetCRLs([][]byte{own}) == nil {
		t.Error("a list was taken before there was a root")
	}
	testkit.NoError(t, trust.SetRoots([]*x509.Certificate{ca.Root}))
	if trust.SetCRLs([][]byte{own}) == nil {
		t.Error("a list was taken before its intermediate was known")
	}
	r, _ := signertest.Request(t)
	trust.Learn(ca.Sign(t, r.Template))
	_, changed := trust.Authorities()
	testkit.NoError(t, trust.SetCRLs([][]byte{own}))
	if !closed(changed) {
		t.Error("nobody was told")
	}
	for what, bad := range map[string][]byte{"another's": list(other), "broken": own[:40]} {
		if trust.SetCRLs([][]byte{bad}) == nil {
			t.Errorf("%s list was taken", what)
		}
	}
	a, changed := trust.Authorities()
	testkit.NoError(t, trust.SetCRLs([][]byte{own}))
	testkit.NoError(t, trust.SetRoots([]*x509.Certificate{ca.Root}))
	if now, _ := trust.Authorities(); now != a || closed(changed) || len(a.CRLs) != 1 {
		t.Errorf("the same state changed something: %v", now)
	}
	testkit.NoError(t, trust.SetRoots([]*x509.Certificate{ca.Root, other.Root}))
	if now, _ := trust.Authorities(); len(now.CRLs) != 1 || len(now.Intermediates) != 1 || len(now.Roots) != 2 {
		t.Errorf("with another root beside it: %v", now)
	}
	testkit.NoError(t, trust.SetRoots([]*x509.Certificate{other.Root}))
	if now, _ := trust.Authorities(); len(now.CRLs) != 0 || len(now.Intermediates) != 0 {
		t.Errorf("with another root in its place: %v", now)
	}
}
