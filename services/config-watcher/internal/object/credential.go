package object

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"

	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
)

// Names of a Secret's entries that a gateway reads: those of type kubernetes.io/tls, then those that only Istio knows.
const (
	tlsChain, tlsKey, tlsCA, tlsCRL                 = corev1.TLSCertKey, corev1.TLSPrivateKeyKey, "ca.crt", "ca.crl"
	genericChain, genericKey, genericCA, genericCRL = "cert", "key", "cacert", "crl"
)

// Credential is the part of a Secret, or of a ConfigMap with certificates, that a gateway reads. Printing, logging and
// encoding it shows "(redacted)"; only Proto gives the content. It is immutable.
type Credential struct {
	chain, key, ca, crl []byte
	version             string
}

// Entry is one entry of a Secret under the name that the user has given it.
type Entry struct {
	Name  string
	Value []byte
}

// Format hides the value.
func (e Entry) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, e.Name+"=(redacted)") }

// Entries are the entries of a Secret that make a Credential. Those that the Secret lacks have no name.
type Entries struct{ Chain, Key, CA, CRL Entry }

// EntriesOf returns the entries of s that make a credential. Istio's entry names win over those of kubernetes.io/tls.
func EntriesOf(s *corev1.Secret) Entries {
	var e Entries
	if !holdsTLS(s.Type) {
		return e
	}
	value := func(name string) []byte {
		if v, ok := s.StringData[name]; ok {
			return []byte(v)
		}
		return s.Data[name]
	}
	has := func(name string) bool { return len(value(name)) > 0 }
	entry := func(name string) Entry {
		if !has(name) {
			return Entry{}
		}
		return Entry{name, value(name)}
	}
	crl := ""
	switch {
	case has(genericChain) && has(genericKey):
		e.Chain, e.Key, crl = entry(genericChain), entry(genericKey), genericCRL
	case has(tlsChain) || has(tlsKey):
		e.Chain, e.Key, crl = entry(tlsChain), entry(tlsKey), tlsCRL
	}
	switch {
	case has(genericCA):
		e.CA, crl = entry(genericCA), genericCRL
	case has(tlsCA):
		e.CA, crl = entry(tlsCA), tlsCRL
	}
	if crl != "" {
		e.CRL = entry(crl)
	}
	return e
}

// holdsTLS reports whether a gateway may read a Secret of the type: "kubernetes.io/tls", "Opaque", or a user's own
// type.
func holdsTLS(t corev1.SecretType) bool {
	switch t {
	case corev1.SecretTypeServiceAccountToken, corev1.SecretTypeDockercfg, corev1.SecretTypeDockerConfigJson, corev1.SecretTypeBasicAuth,
		corev1.SecretTypeSSHAuth, corev1.SecretTypeBootstrapToken, "helm.sh/release.v1":
		return false
	default:
		return true
	}
}

// CredentialOf returns what a gateway may read of a Secret; nil if that is nothing.
func CredentialOf(s *corev1.Secret) *Credential {
	e := EntriesOf(s)
	if len(e.Key.Value) == 0 && len(e.CA.Value) == 0 {
		return nil
	}
	return newCredential(e.Chain.Value, e.Key.Value, e.CA.Value, e.CRL.Value)
}

// AuthorityOf returns the CA certificates, and the revocation list, that a ConfigMap holds under the entry names of a
// Secret; nil if it has none. A ConfigMap whose entries cannot be read is no mistake: most ConfigMaps are for something
// else.
func AuthorityOf(m *corev1.ConfigMap) *Credential {
	for _, names := range [][2]string{{genericCA, genericCRL}, {tlsCA, tlsCRL}} {
		certificates, list := []byte(m.Data[names[0]]), []byte(m.Data[names[1]])
		if !certificatesOnly(certificates) {
			continue
		}
		if block, _ := pem.Decode(list); block == nil {
			list = nil
		} else if _, err := x509.ParseRevocationList(block.Bytes); err != nil {
			return nil
		}
		return newCredential(nil, nil, certificates, list)
	}
	return nil
}

// certificatesOnly reports whether text is PEM with at least one block and every block is a certificate.
func certificatesOnly(text []byte) bool {
	found := false
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if _, err := x509.ParseCertificate(block.Bytes); err != nil || block.Type != "CERTIFICATE" {
			return false
		}
		found = true
	}
	return found
}

func newCredential(chain, key, ca, crl []byte) *Credential {
	c := &Credential{chain: chain, key: key, ca: ca, crl: crl}
	h := sha256.New()
	for _, part := range [][]byte{chain, key, ca, crl} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	c.version = hex.EncodeToString(h.Sum(nil)[:16])
	return c
}

// Authority returns the part that peers are verified with; nil if the credential has none.
func (c *Credential) Authority() *Credential {
	if c == nil || len(c.ca) == 0 {
		return nil
	}
	return newCredential(nil, nil, c.ca, c.crl)
}

// HasKey reports whether the credential has a certificate and its key.
func (c *Credential) HasKey() bool { return c != nil && len(c.chain) > 0 && len(c.key) > 0 }

// Version is a hash of the content; "" for none.
func (c *Credential) Version() string {
	if c == nil {
		return ""
	}
	return c.version
}

// Proto is the message that carries the content; nil for none.
func (c *Credential) Proto() *secretv1.Credential {
	if c == nil {
		return nil
	}
	return &secretv1.Credential{CertificateChain: c.chain, PrivateKey: c.key, CaCertificates: c.ca, Crl: c.crl, Version: c.version}
}

const redacted = "(redacted)"

// Format implements fmt.Formatter for every verb.
func (c *Credential) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, redacted) }

// LogValue implements slog.LogValuer.
func (c *Credential) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler, which JSON and YAML use.
func (c *Credential) MarshalText() ([]byte, error) { return []byte(redacted), nil }
