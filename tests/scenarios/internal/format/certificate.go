package format

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"time"
)

// lifetime of a certificate that says none.
const lifetime = 24 * time.Hour

// Material is a certificate with its key.
type Material struct {
	Certificate *x509.Certificate
	// CertPEM is the certificate alone; ChainPEM has its issuers, too, but no self-signed one; KeyPEM is PKCS #8.
	CertPEM, ChainPEM, KeyPEM []byte

	key     *ecdsa.PrivateKey
	revoked []x509.RevocationListEntry
}

// TLS is the material as crypto/tls takes it.
func (m *Material) TLS() (tls.Certificate, error) { return tls.X509KeyPair(m.ChainPEM, m.KeyPEM) }

// Pool has the certificate as the only root.
func (m *Material) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(m.Certificate)
	return pool
}

// CRLPEM lists what the certificate, an authority, has revoked.
func (m *Material) CRLPEM() ([]byte, error) {
	now := m.Certificate.NotBefore
	raw, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: now, NextUpdate: m.Certificate.NotAfter, RevokedCertificateEntries: m.revoked,
	}, m.Certificate, m.key)
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: raw}), err
}

// Issue makes the certificates of a scenario, issuers first.
func Issue(specs map[string]Certificate, now time.Time) (map[string]*Material, error) {
	made := map[string]*Material{}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		if err := issue(specs, made, name, nil, now); err != nil {
			return nil, err
		}
	}
	return made, nil
}

func issue(specs map[string]Certificate, made map[string]*Material, name string, asked []string, now time.Time) error {
	if made[name] != nil {
		return nil
	}
	if slices.Contains(asked, name) {
		return fmt.Errorf("certificates: %v issue one another", append(asked, name))
	}
	spec := specs[name]
	var issuer *Material
	if spec.Issuer != "" && spec.Issuer != name {
		if err := issue(specs, made, spec.Issuer, append(asked, name), now); err != nil {
			return err
		}
		issuer = made[spec.Issuer]
	}
	m, err := NewMaterial(name, spec, issuer, now)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", name, err)
	}
	if spec.Revoked && issuer != nil {
		issuer.revoked = append(issuer.revoked, x509.RevocationListEntry{SerialNumber: m.Certificate.SerialNumber, RevocationTime: now})
	}
	made[name] = m
	return nil
}

// NewMaterial makes a certificate whose common name is its name; without an issuer it is self-signed.
func NewMaterial(name string, spec Certificate, issuer *Material, now time.Time) (*Material, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	until := lifetime
	if spec.NotAfter != nil {
		until = spec.NotAfter.D()
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: []string{"Scenarios"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(until),
		DNSNames: spec.DNSNames, IPAddresses: ipAddresses(spec.IPs), BasicConstraintsValid: true, IsCA: spec.CA,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if spec.CA {
		template.KeyUsage |= x509.KeyUsageCertSign | x509.KeyUsageCRLSign
		template.ExtKeyUsage = nil
	}
	for _, text := range spec.URIs {
		uri, err := url.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("uris: %w", err)
		}
		template.URIs = append(template.URIs, uri)
	}
	parent, signer := template, key
	if issuer != nil {
		parent, signer = issuer.Certificate, issuer.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, err
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	m := &Material{
		Certificate: cert, key: key,
		CertPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}),
		KeyPEM:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey}),
	}
	m.ChainPEM = m.CertPEM
	if issuer != nil && issuer.Certificate.CheckSignatureFrom(issuer.Certificate) != nil {
		m.ChainPEM = slices.Concat(m.CertPEM, issuer.ChainPEM)
	}
	return m, nil
}

func ipAddresses(from []netip.Addr) []net.IP {
	var all []net.IP
	for _, ip := range from {
		all = append(all, ip.AsSlice())
	}
	return all
}
