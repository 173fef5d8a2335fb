package world

import "crypto/x509"

// Roots are trusted by callers that name no authority: those of the certificates that were made for applications.
func (w *World) Roots() *x509.CertPool { return w.issuer.Pool() }

// Died lists processes that ended unasked.
func (w *World) Died() []string { return w.died() }
