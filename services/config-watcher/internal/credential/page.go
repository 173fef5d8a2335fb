package credential

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"time"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Summary is a credential's entry on the admin page.
type Summary struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Version   string `json:"version"`
	// Hosts and NotAfter are from the server certificate; absent if the credential has none.
	Hosts    []string   `json:"hosts,omitempty"`
	NotAfter *time.Time `json:"notAfter,omitempty"`
	// Verifies is true if the credential has CA certificates, Revokes if it has a revocation list.
	Verifies bool `json:"verifies,omitempty"`
	Revokes  bool `json:"revokes,omitempty"`
}

// Summaries lists all credentials, sorted by namespace and name.
func (t *Table) Summaries() []Summary {
	t.mu.Lock()
	out := make([]Summary, 0, len(t.held))
	for ref, c := range t.held {
		out = append(out, summary(ref, c))
	}
	t.mu.Unlock()
	slices.SortFunc(out, func(a, b Summary) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func summary(ref Ref, c *object.Credential) Summary {
	m := c.Proto()
	s := Summary{
		Namespace: ref.Namespace, Name: ref.Name, Version: c.Version(), Verifies: len(m.GetCaCertificates()) > 0, Revokes: len(m.GetCrl()) > 0,
	}
	block, _ := pem.Decode(m.GetCertificateChain())
	if block == nil {
		return s
	}
	if leaf, err := x509.ParseCertificate(block.Bytes); err == nil {
		s.Hosts, s.NotAfter = leaf.DNSNames, &leaf.NotAfter
	}
	return s
}
