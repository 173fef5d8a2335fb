package held

import (
	"crypto"
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"fairlead.dev/services/ca/internal/signer"
)

// Authority is what a Signer signs with. It is immutable.
type Authority struct {
	// Certificate is the issuer of the leaves: an intermediate, or a root.
	Certificate *x509.Certificate
	// Key of Certificate.
	Key crypto.Signer
	// Chain has the certificates between Certificate and a root, without both, nearest to Certificate first.
	Chain []*x509.Certificate
	// Roots verify Certificate by way of Chain; at least one. Certificate is among them if it is a root.
	Roots []*x509.Certificate
	// CRLs are lists of revoked certificates in DER, which the Signer's Authorities pass on.
	CRLs [][]byte
}

// check returns an error for an Authority whose parts do not belong together.
func (a *Authority) check() error {
	switch {
	case a.Certificate == nil || a.Key == nil:
		return errors.New("the authority lacks its certificate or its key")
	case len(a.Roots) == 0:
		return errors.New("the authority has no root")
	case !signer.SameKey(a.Key.Public(), a.Certificate.PublicKey):
		return errors.New("the authority's key is not that of its certificate")
	}
	return nil
}

// isRoot reports whether the issuing certificate is itself a root, which no chain has in it.
func (a *Authority) isRoot() bool { return slices.ContainsFunc(a.Roots, a.Certificate.Equal) }

// intermediates are the certificates that follow a leaf in its chain.
func (a *Authority) intermediates() []*x509.Certificate {
	if a.isRoot() {
		return nil
	}
	return append([]*x509.Certificate{a.Certificate}, a.Chain...)
}

// paths returns all ways from the issuing certificate to a root, both included.
func (a *Authority) paths() [][]*x509.Certificate {
	var found [][]*x509.Certificate
	var follow func(path []*x509.Certificate)
	follow = func(path []*x509.Certificate) {
		last := path[len(path)-1]
		if slices.ContainsFunc(a.Roots, last.Equal) {
			found = append(found, slices.Clone(path))
			return
		}
		for _, next := range slices.Concat(a.Roots, a.Chain) {
			if !slices.ContainsFunc(path, next.Equal) && signs(next, last) {
				follow(append(path, next))
			}
		}
	}
	follow([]*x509.Certificate{a.Certificate})
	return found
}

// signs reports whether parent's key has signed child. Names are compared first, because signatures take time.
func signs(parent, child *x509.Certificate) bool {
	return string(parent.RawSubject) == string(child.RawIssuer) && child.CheckSignatureFrom(parent) == nil
}

// Path returns the certificates from the issuing one to a root, both included, by the way that is valid for longest;
// nil if there is none. Verifiers find it, because they have all roots.
func (a *Authority) Path() []*x509.Certificate {
	var best []*x509.Certificate
	var latest time.Time
	for _, path := range a.paths() {
		if _, until := signer.Window(path); until.After(latest) {
			best, latest = path, until
		}
	}
	return best
}
