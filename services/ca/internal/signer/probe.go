package signer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/services/ca/internal/tokentime"
)

// Probe is what a signer must be able to do before the mesh depends on it.
type Probe struct {
	// Identity is that of the ca itself, DNSNames those of its own certificate.
	Identity spiffeid.ID
	DNSNames []string
	// TTL is the longest lifetime of a leaf.
	TTL time.Duration
	// Token is that of the ca, for signers whose Capabilities say Token.
	Token string
}

// Prober is an Issuer that finds more of what can be wrong than a leaf shows, such as settings of a service.
type Prober interface {
	Probe(ctx context.Context, p Probe) error
}

// Try has the issuer sign one leaf, for a key that is thrown away, and checks it like every other. A signer that leaves
// out names, shortens lifetimes, may not sign for the mesh's names, or cannot be reached fails here, before anybody
// depends on it.
func (p Probe) Try(ctx context.Context, issuer Issuer, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	lastToken, err := tokentime.Extension(now, "")
	if err != nil {
		return err
	}
	uris := []*url.URL{p.Identity.URL()}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: uris, DNSNames: p.DNSNames}, key)
	if err != nil {
		return err
	}
	authorities, _ := issuer.Authorities()
	if authorities == nil {
		return Errorf(Away, "the roots of the signer are not known yet")
	}
	if issuer.Capabilities().Token && p.Token == "" {
		return nil // only workloads can show whether it signs for them
	}
	if own, ok := issuer.(Prober); ok {
		if err := own.Probe(ctx, p); err != nil {
			return err
		}
	}
	from, until := now.Add(-time.Minute).Truncate(time.Second), now.Add(p.TTL).Truncate(time.Second)
	if from.Before(authorities.NotBefore) {
		from = authorities.NotBefore
	}
	// Leaves end with the certificates that they need, as package policy decides. A ca that starts late in their life
	// must start all the same.
	if end := authorities.NotAfter; !end.IsZero() && end.Before(until) {
		if until = end; !until.After(now.Add(time.Minute)) {
			return Errorf(Refused, "the signer's certificates end at %s; renew them first", end.UTC().Format(time.RFC3339))
		}
	}
	r := &Request{CSR: csr, Identity: p.Identity, Token: p.Token, Template: &x509.Certificate{
		PublicKey: &key.PublicKey, URIs: uris, DNSNames: p.DNSNames, NotBefore: from.UTC(), NotAfter: until.UTC(),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true, ExtraExtensions: []pkix.Extension{lastToken},
	}}
	chain, err := issuer.Issue(ctx, r)
	if err != nil {
		return err
	}
	can := issuer.Capabilities()
	roots := x509.NewCertPool()
	for _, c := range authorities.Roots {
		roots.AddCert(c)
	}
	if err := Check(r, can, chain, roots, now); err != nil {
		return err
	}
	// A signer whose leaves live shorter than asked would renew all of the mesh more often than its operator wants.
	// What it may take is the time that it has to answer.
	if short := until.Sub(chain[0].NotAfter); short > time.Minute+p.TTL/100 {
		return Errorf(Lied, "the signer's certificate is valid until %s, less than the %s asked for; have the signer allow %s",
			chain[0].NotAfter.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339), p.TTL)
	}
	return nil
}
