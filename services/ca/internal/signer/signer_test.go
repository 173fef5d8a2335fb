package signer

import (
	"crypto/x509"
	"testing"

	"fairlead.dev/pkg/testkit"
)

func TestAuthoritiesAreEqualIfAllOfThemIs(t *testing.T) {
	a, b := testkit.PKI(t).Cert, testkit.PKI(t).Cert
	one := func() *Authorities {
		return &Authorities{Roots: []*x509.Certificate{a}, CRLs: [][]byte{{1}}}
	}
	if !one().Equal(one()) || !(*Authorities)(nil).Equal(nil) {
		t.Error("equal ones differ")
	}
	for name, change := range map[string]func(*Authorities){
		"root": func(x *Authorities) { x.Roots[0] = b }, "roots": func(x *Authorities) { x.Roots = append(x.Roots, b) },
		"intermediate": func(x *Authorities) { x.Intermediates = []*x509.Certificate{b} },
		"end":          func(x *Authorities) { x.NotAfter = now },
		"CRL":          func(x *Authorities) { x.CRLs[0] = []byte{2} }, "CRLs": func(x *Authorities) { x.CRLs = nil },
	} {
		other := one()
		if change(other); one().Equal(other) {
			t.Errorf("another %s is not seen", name)
		}
	}
	if (*Authorities)(nil).Equal(one()) {
		t.Error("the first ones are not seen")
	}
}
