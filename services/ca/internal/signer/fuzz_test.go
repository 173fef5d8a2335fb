package signer

import (
	"crypto/x509"
	"slices"
	"testing"
	"time"

	"fairlead.dev/services/ca/internal/catest"
)

// FuzzCheck: whatever a signer answers with, what passes is the leaf that was asked for, by one of the roots.
func FuzzCheck(f *testing.F) {
	root := newAuthority(f, nil)
	middle, other := newAuthority(f, root), newAuthority(f, nil)
	r := request(f)
	all := Capabilities{Extensions: true, NamesBesideCSR: true, Validity: true}
	leaf := sign(f, middle, r.Template)
	longer := *r.Template
	longer.NotAfter = longer.NotAfter.Add(time.Hour)
	f.Add(leaf.Raw, middle.Cert.Raw)
	f.Add(sign(f, root, r.Template).Raw, []byte{})
	f.Add(sign(f, other, r.Template).Raw, other.Cert.Raw)
	f.Add(sign(f, middle, &longer).Raw, middle.Cert.Raw)
	f.Add(middle.Cert.Raw, root.Cert.Raw)
	roots := catest.Pool(root.Cert)
	if err := Check(r, all, []*x509.Certificate{leaf, middle.Cert}, roots, now); err != nil {
		f.Fatalf("the honest answer is refused: %v", err)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var chain []*x509.Certificate
		for _, der := range [][]byte{first, second} {
			if c, err := x509.ParseCertificate(der); err == nil {
				chain = append(chain, c)
			}
		}
		if err := Check(r, all, chain, roots, now); err != nil {
			return
		}
		got := chain[0]
		switch {
		case !SameKey(got.PublicKey, r.Template.PublicKey), len(got.URIs) != 1, got.URIs[0].String() != r.Template.URIs[0].String():
			t.Errorf("another key or name: %v", got.URIs)
		case got.IsCA, len(got.DNSNames)+len(got.IPAddresses)+len(got.EmailAddresses) > 0, len(got.ExtKeyUsage) != 2,
			slices.Contains(got.ExtKeyUsage, x509.ExtKeyUsageAny):
			t.Error("more than was asked for")
		case got.NotAfter.After(r.Template.NotAfter.Add(slack)):
			t.Errorf("valid until %s", got.NotAfter)
		case got.CheckSignatureFrom(root.Cert) != nil && got.CheckSignatureFrom(middle.Cert) != nil:
			t.Error("nobody that the mesh trusts has signed it")
		}
	})
}
