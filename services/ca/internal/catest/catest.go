// Package catest makes certificate requests for the ca's tests, well-formed ones and others: Key and CSR make an
// ordinary one, Names and Extension templates for CSR.
package catest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net/url"
	"testing"
)

// Key makes an ECDSA key on P-256.
func Key(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// CSR signs the template with the key and encodes it in PEM.
func CSR(t testing.TB, key crypto.Signer, template *x509.CertificateRequest) string {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return PEM(der)
}

// PEM encodes a request.
func PEM(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// Names is a template with these URIs and nothing else.
func Names(t testing.TB, uris ...string) *x509.CertificateRequest {
	t.Helper()
	template := &x509.CertificateRequest{}
	for _, text := range uris {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, u)
	}
	return template
}

// Extension encodes value as the content of an extension of a template.
func Extension(t testing.TB, oid asn1.ObjectIdentifier, value any) *x509.CertificateRequest {
	t.Helper()
	der, err := asn1.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return &x509.CertificateRequest{ExtraExtensions: []pkix.Extension{{Id: oid, Value: der}}}
}
