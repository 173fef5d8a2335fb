// Package authoritytest makes the authority.Authority of tests.
package authoritytest

import (
	"context"
	"crypto"
	"crypto/x509"
	"testing"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/authority"
	"fairlead.dev/services/ca/internal/held"
	"fairlead.dev/services/ca/internal/signer/guard"
	"fairlead.dev/services/ca/internal/trustbundle"
)

// New makes one that issues with a root of the test's, which is the whole trust bundle.
func New(t testing.TB, root *x509.Certificate, key crypto.Signer) *authority.Authority {
	t.Helper()
	publisher := trustbundle.NewPublisher("cluster.local", func(context.Context, []string, []string) (trustbundle.Numbered, error) {
		return trustbundle.Numbered{Generation: 1}, nil
	})
	text := tlsconf.EncodeCertificate(root)
	if err := publisher.Publish(t.Context(), nil, []string{text}); err != nil {
		t.Fatal(err)
	}
	a := authority.New(publisher)
	a.Use(1, guard.New(held.New(root, key), guard.Config{}), nil)
	return a
}
