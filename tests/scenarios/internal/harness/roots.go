package harness

import "crypto/x509"

// Roots are trusted by callers that name no authority: those of the certificates that were made for applications.
func (h *Harness) Roots() *x509.CertPool { return h.issuer.Pool() }

// Died lists processes that ended unasked.
func (h *Harness) Died() []string { return h.ground.died() }
