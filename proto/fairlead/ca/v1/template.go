package cav1

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"
)

// The extended key usages of a request that names none: TLS servers and clients.
const (
	serverAuth = "1.3.6.1.5.5.7.3.1"
	clientAuth = "1.3.6.1.5.5.7.3.2"
)

// Template returns the leaf that the request asks for, for servers in Go: x509.CreateCertificate signs it, with the
// template's PublicKey, and adds a random serial number. The request's csr, identity, token and profile have no part in
// it. An error says what no server of leaves may sign, and is for INVALID_ARGUMENT.
func (m *SignRequest) Template(now time.Time) (*x509.Certificate, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if m.GetIsCa() {
		return nil, errors.New("is_ca: is set; this server signs leaves")
	}
	t := &x509.Certificate{
		DNSNames: m.GetDnsSans(), NotBefore: now, NotAfter: now.Add(m.GetTtl().AsDuration()), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsage(m.GetKeyUsages()),
	}
	if m.GetKeyUsages() == 0 {
		t.KeyUsage = x509.KeyUsageDigitalSignature
	}
	if m.GetNotBefore() != nil {
		t.NotBefore = m.GetNotBefore().AsTime()
	}
	if m.GetNotAfter() != nil {
		t.NotAfter = m.GetNotAfter().AsTime()
	}
	var err error
	if t.PublicKey, err = x509.ParsePKIXPublicKey(m.GetPublicKey()); err != nil {
		return nil, fmt.Errorf("public_key: %w", err)
	}
	switch {
	case t.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 || m.GetKeyUsages() >= 1<<9:
		return nil, fmt.Errorf("key_usages: %#x has usages of an authority, or unknown ones", m.GetKeyUsages())
	case !t.NotAfter.After(t.NotBefore) || !t.NotAfter.After(now):
		return nil, fmt.Errorf("not_after: %s is over; compare the clocks", t.NotAfter.UTC().Format(time.RFC3339))
	}
	if err := errors.Join(m.names(t), m.usages(t), m.extensions(t)); err != nil {
		return nil, err
	}
	return t, nil
}

func (m *SignRequest) names(t *x509.Certificate) error {
	if n := len(m.GetUriSans()); n != 1 {
		return fmt.Errorf("uri_sans: has %d URIs; a workload has exactly one", n)
	}
	for _, text := range m.GetUriSans() {
		u, err := url.Parse(text)
		if err != nil || u.String() != text || u.Scheme == "" {
			return fmt.Errorf("uri_sans: %q is no URI in its usual form", text)
		}
		t.URIs = append(t.URIs, u)
	}
	for _, text := range m.GetIpSans() {
		ip := net.ParseIP(text)
		if ip == nil {
			return fmt.Errorf("ip_sans: %q is no IP address", text)
		}
		t.IPAddresses = append(t.IPAddresses, ip)
	}
	return nil
}

func (m *SignRequest) usages(t *x509.Certificate) error {
	wanted := m.GetExtendedKeyUsages()
	if len(wanted) == 0 {
		wanted = []string{serverAuth, clientAuth}
	}
	for _, text := range wanted {
		id, err := objectIdentifier(text)
		if err != nil {
			return fmt.Errorf("extended_key_usages: %w", err)
		}
		t.UnknownExtKeyUsage = append(t.UnknownExtKeyUsage, id)
	}
	return nil
}

// standard are the certificate extensions of X.509 (RFC 5280, 4.2.1), which fields of the request decide.
var standard = asn1.ObjectIdentifier{2, 5, 29}

func (m *SignRequest) extensions(t *x509.Certificate) error {
	for _, e := range m.GetExtensions() {
		id, err := objectIdentifier(e.GetId())
		if err != nil {
			return fmt.Errorf("extensions: %w", err)
		}
		same := func(other pkix.Extension) bool { return other.Id.Equal(id) }
		if len(id) > len(standard) && id[:len(standard)].Equal(standard) || slices.ContainsFunc(t.ExtraExtensions, same) {
			return fmt.Errorf("extensions: %s is one that other fields decide, or is there twice", id)
		}
		t.ExtraExtensions = append(t.ExtraExtensions, pkix.Extension{Id: id, Critical: e.GetCritical(), Value: e.GetValue()})
	}
	return nil
}

// objectIdentifier parses the dotted form.
func objectIdentifier(text string) (asn1.ObjectIdentifier, error) {
	id, err := x509.ParseOID(text)
	if err != nil {
		return nil, fmt.Errorf("%q is no object identifier", text)
	}
	content, err := id.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, err)
	}
	der, err := asn1.Marshal(asn1.RawValue{Tag: asn1.TagOID, Bytes: content})
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, err)
	}
	var out asn1.ObjectIdentifier
	if _, err := asn1.Unmarshal(der, &out); err != nil {
		return nil, fmt.Errorf("%q has a number that is too large: %w", text, err)
	}
	return out, nil
}
