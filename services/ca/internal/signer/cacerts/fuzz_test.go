package cacerts

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"fairlead.dev/services/ca/internal/catest"
)

// Certificates of two CAs, which have signed each other's roots, in any arrangement make a set that signs, or an error.
func FuzzArrangement(f *testing.F) {
	a, b := newPlug(f), newPlug(f)
	cross := *b.root.Cert
	pool := []*catest.CA{
		a.issuing, a.middle, a.root, b.issuing, b.middle, b.root, {Cert: a.root.Sign(f, &cross, b.root.Key.Public())},
		a.successor(f).issuing, catest.NewCA(f, nil, a.root.Key, func(c *x509.Certificate) { c.Subject = a.root.Cert.Subject }),
	}
	i, err := New(Config{Directory: "/etc/cacerts"}, deps(), Mesh{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(byte(0), []byte{0}, []byte{0, 1, 2}, []byte{2})
	f.Add(byte(3), []byte{3, 4}, []byte{6}, []byte{2, 5})
	f.Add(byte(8), []byte{8}, []byte{}, []byte{2})
	now := time.Now()
	f.Fuzz(func(t *testing.T, key byte, cert, chain, roots []byte) {
		pick := func(places []byte) (out []byte) {
			for _, place := range places[:min(len(places), 6)] {
				out = append(out, catest.Certs(pool[int(place)%len(pool)])...)
			}
			return out
		}
		owner := pool[int(key)%len(pool)]
		if owner.Key == nil {
			return
		}
		set, err := i.usable(&files{
			layout: istioLayout, cert: pick(cert), key: catest.KeyPEM(t, owner.Key), chain: pick(chain), roots: pick(roots),
		}, now)
		if err != nil {
			return
		}
		i.current = set
		i.serve(set.Authority)
		if err := issuedBy(t, i, &catest.CA{Cert: set.Certificate}, set.Roots...); err != nil {
			t.Error(err)
		}
	})
}

// Whatever the files have, they make a set that signs, or an error; lists of revoked certificates too.
func FuzzFiles(f *testing.F) {
	p := newPlug(f)
	istio, tls := p.istio(f), p.tls(f)
	f.Add(istio["ca-cert.pem"], istio["ca-key.pem"], istio["cert-chain.pem"], istio["root-cert.pem"], p.crls(f))
	f.Add(tls["tls.crt"], tls["tls.key"], []byte{}, tls["ca.crt"], []byte{})
	f.Add(catest.Certs(p.root), catest.KeyPEM(f, p.root.Key), []byte{}, []byte{}, pem.EncodeToMemory(&pem.Block{Type: "X509 CRL"}))
	f.Add(istio["ca-cert.pem"][:90], istio["ca-key.pem"], istio["cert-chain.pem"], istio["root-cert.pem"], []byte("-----BEGIN X509 CRL-----"))
	i, err := New(Config{Directory: "/etc/cacerts"}, deps(), Mesh{})
	if err != nil {
		f.Fatal(err)
	}
	now := time.Now()
	f.Fuzz(func(t *testing.T, cert, key, chain, roots, crl []byte) {
		set, err := i.usable(&files{layout: istioLayout, cert: cert, key: key, chain: chain, roots: roots}, now)
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" {
				t.Error("an error without words")
			}
			return
		}
		i.current = set
		_, _ = i.revoked(&files{crl: crl}, now)
		i.serve(set.Authority)
		if err := issuedBy(t, i, &catest.CA{Cert: set.Certificate}, set.Roots...); err != nil {
			t.Error(errors.Join(errors.New("the set was taken"), err))
		}
	})
}
