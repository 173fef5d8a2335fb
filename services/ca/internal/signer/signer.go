// Package signer is the seam between the ca and what signs for it. Package issuance decides who gets which certificate;
// a signer makes that certificate, and is never believed: Check compares each chain that comes back with what was
// decided, before it leaves the ca.
//
// There are three kinds of parts, each an interface here, with one package below this one for each implementation:
//
//   - An Issuer signs leaves. Package held is the one that signs in this process, with a key that the ca may use;
//     others ask a service for every leaf, so that a service that is away stops new certificates.
//   - A Minter signs an intermediate certificate for a key of the ca. A service that is away then stops no leaf.
//   - A KeyManager makes and uses keys that need not leave it: files, a Secret, a PKCS#11 token, a cloud's KMS.
package signer

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/clock"
)

// Request is one leaf that the ca has decided to issue.
type Request struct {
	// Template has the public key, the names, the validity, the usages and the extensions of the leaf; no serial
	// number. The subject is empty. It is shared and must not be changed.
	Template *x509.Certificate
	// CSR is the caller's own request in DER; its signature has been verified. Its names are absent or exactly those of
	// Template. It is empty for the ca's own certificate if the signer's Capabilities say NamesBesideCSR.
	CSR []byte
	// Identity is whose certificate it is.
	Identity spiffeid.ID
	// Token is the bearer token with which the caller proved that identity; empty if a certificate proved it, or if the
	// caller asks in the name of another. It is secret: it must not appear in errors and logs.
	Token string
	// Profile is the name that the caller asked for in the metadata field CertSigner; mostly empty. A signer that has
	// profiles refuses one that it does not know, or that Identity's namespace may not use.
	Profile string
}

// Issuer signs leaves. It is safe for concurrent use.
type Issuer interface {
	// Issue returns the leaf first and then the intermediates, without a root. Errors are of type *Error.
	Issue(ctx context.Context, r *Request) ([]*x509.Certificate, error)
	// Authorities returns what verifies the leaves, nil before it is known, and a channel that is closed when that
	// changes.
	Authorities() (*Authorities, <-chan struct{})
	// Capabilities say what requests may ask of it. They never change.
	Capabilities() Capabilities
	// Run follows the signer until ctx ends: files that change, intermediates that must be renewed, roots of a service.
	// It returns before ctx ends only if the signer can never be used.
	Run(ctx context.Context) error
}

// Authorities is what an Issuer signs with, at one time. It is immutable.
type Authorities struct {
	// Roots verify every leaf; at least one. The ca announces them before it uses the signer.
	Roots []*x509.Certificate
	// Intermediates are between the leaf and a root, nearest to the leaf first; nil if they are not known before a leaf
	// has been issued.
	Intermediates []*x509.Certificate
	// NotAfter is when the first certificate that a leaf needs, root or intermediate, expires. No leaf may be valid
	// longer.
	NotAfter time.Time
	// NotBefore is when the last of them became valid.
	NotBefore time.Time
	// CRLs are lists of revoked certificates in DER; mostly none.
	CRLs [][]byte
}

// Equal compares certificates and lists.
func (a *Authorities) Equal(b *Authorities) bool {
	if a == nil || b == nil {
		return a == b
	}
	same := func(a, b []*x509.Certificate) bool { return slices.EqualFunc(a, b, (*x509.Certificate).Equal) }
	return same(a.Roots, b.Roots) && same(a.Intermediates, b.Intermediates) && slices.EqualFunc(a.CRLs, b.CRLs, bytes.Equal) &&
		a.NotAfter.Equal(b.NotAfter) && a.NotBefore.Equal(b.NotBefore)
}

// Window is when all of some certificates are valid.
func Window(certs []*x509.Certificate) (notBefore, notAfter time.Time) {
	for i, c := range certs {
		if i == 0 || c.NotBefore.After(notBefore) {
			notBefore = c.NotBefore
		}
		if i == 0 || c.NotAfter.Before(notAfter) {
			notAfter = c.NotAfter
		}
	}
	return notBefore, notAfter
}

// Capabilities are what an Issuer can do with a Request.
type Capabilities struct {
	// Extensions is true if the leaf gets the extensions of Template. Where it is false, the ca cannot write into a
	// certificate when its owner last showed a token, and every request needs a token.
	Extensions bool
	// NamesBesideCSR is true if the leaf gets the names of Template whatever the CSR says. Where it is false, a CSR
	// must have these names itself.
	NamesBesideCSR bool
	// Validity is true if the leaf gets the validity of Template. Where it is false, it may be shorter, never longer.
	Validity bool
	// Revocation is true if the signer publishes lists of revoked certificates.
	Revocation bool
	// Token is true if Issue needs Request.Token.
	Token bool
	// IDsOnly is true if a leaf can have a SPIFFE ID and no other name. The ca then signs what has more with a root of
	// its own: its own certificate, and those of services that clients verify by DNS names.
	IDsOnly bool
	// Remote is true if Issue waits for another process. Such requests hold no worker of the ca while they wait.
	Remote bool
}

// MintRequest asks for an intermediate certificate.
type MintRequest struct {
	// Key is the intermediate's; the Minter uses it to sign a CSR, if it needs one, and reads the public key.
	Key crypto.Signer
	// Subject of the intermediate.
	Subject pkix.Name
	// URIs of the intermediate: that of the trust domain.
	URIs []*url.URL
	// TTL is the lifetime asked for; the answer may be shorter.
	TTL time.Duration
}

// Minter signs intermediates. It is safe for concurrent use.
type Minter interface {
	// Mint returns the new certificate first, then those between it and a root, and the roots that verify it, at least
	// one. Errors are of type *Error. Package intermediate checks the answer.
	Mint(ctx context.Context, r MintRequest) (chain, roots []*x509.Certificate, err error)
	// Authorities returns the roots that verify what Mint returns now, with their CRLs; the ca asks at intervals.
	Authorities(ctx context.Context) (*Authorities, error)
}

// Algorithm is the kind of a key to make.
type Algorithm string

// The algorithms of keys that the ca signs with.
const (
	ECDSAP256 Algorithm = "ECDSA-P256"
	ECDSAP384 Algorithm = "ECDSA-P384"
	RSA2048   Algorithm = "RSA-2048"
	RSA3072   Algorithm = "RSA-3072"
	RSA4096   Algorithm = "RSA-4096"
)

// KeyManager makes, finds and deletes keys by name, a DNS label. It is safe for concurrent use, by several processes
// too if they may share it: of two that make a key of one name, one gets ErrKeyExists.
type KeyManager interface {
	// Make makes a new key that outlives the process.
	Make(ctx context.Context, name string, a Algorithm) (crypto.Signer, error)
	// Find returns the key that was made with the name, or ErrNoKey.
	Find(ctx context.Context, name string) (crypto.Signer, error)
	// Delete deletes the key; that it is not there is no error.
	Delete(ctx context.Context, name string) error
	// Shared is true if other replicas of the ca find the same keys.
	Shared() bool
}

// Deps is what every signer gets beside its own configuration.
type Deps struct {
	// TrustDomain of all identities.
	TrustDomain spiffeid.TrustDomain
	Clock       clock.Clock
	Log         *slog.Logger
}
