package testkit

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"time"
)

// NewServer issues the certificate of an HTTPS server outside of the mesh, and returns chain and key in PEM.
func (ca *CA) NewServer(hosts ...string) (chain, key []byte) {
	ca.t.Helper()
	k := newKey(ca.t)
	return ca.SignServer(k.Public(), hosts...), KeyPEM(ca.t, k)
}

// SignServer issues a server's certificate for a public key, in PEM.
func (ca *CA) SignServer(public crypto.PublicKey, hosts ...string) []byte {
	ca.t.Helper()
	now := time.Now()
	return CertPEM(sign(ca.t, &x509.Certificate{
		SerialNumber: big.NewInt(serials.Add(1)), Subject: pkix.Name{CommonName: hosts[0]}, DNSNames: hosts,
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}, ca.Cert, public, ca.Key))
}

// Revoke signs a certificate revocation list, in PEM.
func (ca *CA) Revoke(serials ...*big.Int) []byte {
	ca.t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(time.Hour)}
	for _, n := range serials {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: n, RevocationTime: list.ThisUpdate})
	}
	der, err := x509.CreateRevocationList(nil, list, ca.Cert, ca.Key)
	if err != nil {
		ca.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}
