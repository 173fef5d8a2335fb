package tlsconf_test

import (
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

// Whatever files have, they make a certificate with its key and roots, or an error.
func FuzzCertificateFiles(f *testing.F) {
	m, err := testkit.PKI(f).NewSVID("a", "b").Current()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(m.CertPEM, m.KeyPEM, m.RootsPEM)
	f.Add(m.CertPEM[:len(m.CertPEM)/2], m.KeyPEM, m.RootsPEM)
	f.Add([]byte{}, []byte{}, m.RootsPEM)
	f.Fuzz(func(t *testing.T, cert, key, roots []byte) {
		got, err := tlsconf.NewMaterial(cert, key, roots)
		if err != nil {
			return
		}
		if got.Roots == nil || len(cert)+len(key) > 0 &&
			(got.Certificate == nil || got.Certificate.Leaf == nil || got.Certificate.PrivateKey == nil) {
			t.Errorf("half a material: %v", got)
		}
	})
}
