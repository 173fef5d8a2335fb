// Package credential holds the TLS credentials that gateways and sidecars use (SDS). They are not part of the mesh's
// revisions: only those are held that resources of connected proxies depend on.
package credential

import (
	"fmt"
	"log/slog"
	"maps"

	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
)

// Ref names a credential for a proxy.
type Ref struct {
	// Identity is the proxy's verified SPIFFE URI.
	Identity string
	// Namespace of the Secret; "" for that of the identity. config-watcher hands out others only while a listener of
	// the Gateway API that the proxy serves names them.
	Namespace string
	// Name of the Secret; with the suffix "-cacert" for the CA certificates that verify clients.
	Name string
}

// Credential is key material. Printing, logging or encoding it never shows the content. It is immutable.
type Credential struct{ held *secretv1.Credential }

// New wraps a message, which must not be changed afterwards; nil gives nil.
func New(m *secretv1.Credential) *Credential {
	if m == nil {
		return nil
	}
	return &Credential{m}
}

// Chain is the certificate chain in PEM, leaf first; empty if there is none.
func (c *Credential) Chain() []byte { return c.held.GetCertificateChain() }

// Key is the private key in PEM; empty if there is none.
func (c *Credential) Key() []byte { return c.held.GetPrivateKey() }

// Authorities are the CA certificates in PEM that verify clients; empty if there are none.
func (c *Credential) Authorities() []byte { return c.held.GetCaCertificates() }

// Revoked is the list of revoked certificates in PEM; empty if there is none.
func (c *Credential) Revoked() []byte { return c.held.GetCrl() }

// Version is a hash of the content; "" for none.
func (c *Credential) Version() string {
	if c == nil {
		return ""
	}
	return c.held.GetVersion()
}

const redacted = "(redacted)"

// Format implements fmt.Formatter for every verb.
func (c *Credential) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, redacted) }

// LogValue implements slog.LogValuer.
func (c *Credential) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler, which JSON and YAML use.
func (c *Credential) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Set is the known credentials at one moment. It is immutable; nil is the empty set.
type Set struct{ known map[Ref]*Credential }

// NewSet copies a map of credentials. A nil Credential means that the proxy may read no such Secret.
func NewSet(known map[Ref]*Credential) *Set { return &Set{maps.Clone(known)} }

// Get returns the credential of a reference, nil if there is none. known is false while config-watcher has not
// answered.
func (s *Set) Get(ref Ref) (c *Credential, known bool) {
	if s == nil {
		return nil, false
	}
	c, known = s.known[ref]
	return c, known
}

// Len is the number of references known.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.known)
}
