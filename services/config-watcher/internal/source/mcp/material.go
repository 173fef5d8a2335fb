package mcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/config-watcher/internal/object"
)

// material is what one connection of the modes SIMPLE and MUTUAL is made with.
type material struct {
	// roots verify the server; nil are the system's.
	roots *x509.CertPool
	// own is what the server is shown; nil in mode SIMPLE.
	own *tls.Certificate
	// lists are of certificates that are not believed any more. from is the field that has them.
	lists []*x509.RevocationList
	from  string
}

// materialOf reads the files of the settings, or the Secret.
func materialOf(ctx context.Context, settings *networking.ClientTLSSettings, trust Trust) (*material, error) {
	if settings.GetCredentialName() != "" {
		return ofSecret(ctx, settings, trust)
	}
	m := &material{}
	if text := settings.GetCaCertificates(); text != "" {
		if err := m.trust("tlsSettings.caCertificates", text); err != nil {
			return nil, err
		}
	}
	if text := settings.GetCaCrl(); text != "" {
		if err := m.distrust("tlsSettings.caCrl", text); err != nil {
			return nil, err
		}
	}
	if settings.GetMode() == networking.ClientTLSSettings_MUTUAL {
		c, err := tls.LoadX509KeyPair(settings.GetClientCertificate(), settings.GetPrivateKey())
		if err != nil {
			return nil, fmt.Errorf("tlsSettings.clientCertificate: %w", err)
		}
		m.own = &c
	}
	return m, nil
}

// ofSecret reads the Secret, whose entries have the names of a gateway's.
func ofSecret(ctx context.Context, settings *networking.ClientTLSSettings, trust Trust) (*material, error) {
	name := settings.GetCredentialName()
	fail := func(err error) (*material, error) {
		return nil, fmt.Errorf("tlsSettings.credentialName %q: %w", name, err)
	}
	if trust.Secret == nil {
		return fail(errNoSecrets)
	}
	s, err := trust.Secret(ctx, name)
	if err != nil {
		return fail(err)
	}
	m, e := &material{}, object.EntriesOf(s)
	at := func(entry string) string { return fmt.Sprintf("tlsSettings.credentialName %q, entry %s", name, entry) }
	switch {
	case e.CA.Name != "":
		if err := m.trust(at(e.CA.Name), string(e.CA.Value)); err != nil {
			return nil, err
		}
	case !settings.GetInsecureSkipVerify().GetValue():
		return fail(errors.New("the Secret has no ca.crt, which verifies the server"))
	}
	if e.CRL.Name != "" {
		if err := m.distrust(at(e.CRL.Name), string(e.CRL.Value)); err != nil {
			return nil, err
		}
	}
	if settings.GetMode() == networking.ClientTLSSettings_MUTUAL {
		if e.Chain.Name == "" || e.Key.Name == "" {
			return fail(errors.New("the Secret has no tls.crt and tls.key, which mode MUTUAL shows to the server"))
		}
		c, err := tls.X509KeyPair(e.Chain.Value, e.Key.Value)
		if err != nil {
			return fail(errors.New("tls.crt and tls.key cannot be read, or do not go together")) // the error describes the key
		}
		m.own = &c
	}
	return m, nil
}

// errNoSecrets is returned for credentialName without an API server.
var errNoSecrets = errors.New("needs --kubernetes; name files in caCertificates, clientCertificate and privateKey")

// CheckSecret returns why settings need a Secret that nobody can read; nil if they do not.
func CheckSecret(settings *networking.ClientTLSSettings, trust Trust) error {
	if settings.GetCredentialName() == "" || trust.Secret != nil {
		return nil
	}
	return fmt.Errorf("tlsSettings.credentialName %q: %w", settings.GetCredentialName(), errNoSecrets)
}

func (m *material) trust(at, text string) error {
	raw, err := pemOf(text)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	certificates, err := tlsconf.ParseAuthorities(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	m.roots = x509.NewCertPool()
	for _, c := range certificates {
		m.roots.AddCert(c)
	}
	return nil
}

func (m *material) distrust(at, text string) error {
	raw, err := pemOf(text)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	m.from = at
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		m.lists = append(m.lists, list)
	}
	if len(m.lists) == 0 {
		return fmt.Errorf("%s: has no list of revoked certificates in PEM", at)
	}
	return nil
}

// pemOf returns what stands in the settings, as istiod reads it, or in a file, as the API says.
func pemOf(text string) ([]byte, error) {
	if strings.HasPrefix(strings.TrimSpace(text), "-----BEGIN") {
		return []byte(text), nil
	}
	return os.ReadFile(text)
}

// unrevoked verifies that no certificate of the server's is in a list of the authority that has issued it. Whoever
// writes the mesh configuration vouches for the lists, and one that is out of date counts, as in Istio. Lists of other
// authorities alone are a mistake, which would go unnoticed.
func (m *material) unrevoked(cs tls.ConnectionState) error {
	if len(m.lists) == 0 || len(cs.VerifiedChains) == 0 {
		return nil
	}
	applies := false
	for _, chain := range cs.VerifiedChains {
		for _, c := range chain {
			for _, list := range m.lists {
				if !bytes.Equal(list.RawIssuer, c.RawIssuer) {
					continue
				}
				applies = true
				if slices.ContainsFunc(list.RevokedCertificateEntries, func(e x509.RevocationListEntry) bool {
					return e.SerialNumber.Cmp(c.SerialNumber) == 0
				}) {
					return fmt.Errorf("%s: the server's certificate %s is revoked", m.from, c.SerialNumber)
				}
			}
		}
	}
	if !applies {
		return fmt.Errorf("%s: has no list of the authorities that issued the server's certificate", m.from)
	}
	return nil
}
