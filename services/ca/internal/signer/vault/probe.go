package vault

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/url"
	"slices"
	"time"

	"fairlead.dev/services/ca/internal/signer"
)

var _ signer.Prober = (*Issuer)(nil)

// clockSlack is how much Vault's clock may differ from the ca's.
const clockSlack = time.Minute

// Probe asks Vault for one leaf, with identity, DNS names and lifetime of p, and returns what is wrong with it, and
// what to do about it in Vault; nil if the mesh can use the issuer and the role. It reads the role too, if it may.
// It finds more than p.Try does: its CSR has a common name and no other names, to find a role that takes names from
// there, and it asks in the way that shows where Vault shortens lifetimes. It needs no Run.
func (i *Issuer) Probe(ctx context.Context, p signer.Probe) error {
	ctx, cancel := i.engine.bounded(ctx)
	defer cancel()
	what := "probe role " + i.engine.cfg.Role
	known, err := i.readRole(ctx)
	if err != nil {
		return err
	}
	if known != nil {
		if err := known.allows(p.TTL); err != nil {
			return signer.Errorf(signer.Refused, "%s at Vault: %w", what, err)
		}
	}
	a, err := i.engine.look(ctx)
	if err != nil {
		return err
	}
	// Leaves end with the certificates that they need. A ca that starts late in their life must start all the same.
	if left := a.NotAfter.Sub(i.engine.d.Clock.Now()) - clockSlack; left < p.TTL {
		if p.TTL = left; left <= clockSlack {
			return signer.Errorf(signer.Refused, "%s at Vault: the issuer's certificates end at %s; renew them", what,
				a.NotAfter.UTC().Format(time.RFC3339))
		}
	}
	r, err := i.sample(p)
	if err != nil {
		return signer.Errorf(signer.Unsuitable, "%s at Vault: %w", what, err)
	}
	// ttl and not not_after, so that Vault's limits show.
	began := i.engine.d.Clock.Now()
	got, err := i.sign(ctx, r, "ttl", p.TTL.Round(time.Second).String())
	if err != nil {
		return err
	}
	if err := judge(r.Template, got.cert, began, what); err != nil {
		return err
	}
	roots := x509.NewCertPool()
	for _, c := range a.Roots {
		roots.AddCert(c)
	}
	chain := append([]*x509.Certificate{got.cert}, got.chain...)
	if bad := signer.Check(r, i.Capabilities(), chain, roots, i.engine.d.Clock.Now()); bad != nil {
		return bad
	}
	return nil
}

// sample is the request of Probe.
func (i *Issuer) sample(p signer.Probe) (*signer.Request, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "probe.invalid"}}, key)
	if err != nil {
		return nil, err
	}
	now := i.engine.d.Clock.Now()
	return &signer.Request{
		CSR: csr, Identity: p.Identity,
		Template: &x509.Certificate{
			PublicKey: &key.PublicKey, URIs: []*url.URL{p.Identity.URL()}, DNSNames: p.DNSNames,
			NotBefore: now, NotAfter: now.Add(p.TTL),
			KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		},
	}, nil
}

// judge says of the deviations that a role is known to cause what to change in it. If there are none it sets the
// template's end to the leaf's, because a ttl counts from Vault's clock.
func judge(t, leaf *x509.Certificate, began time.Time, what string) error {
	deviation := ""
	lives := fmt.Sprintf("the leaf lives for about %s instead of %s; ", leaf.NotAfter.Sub(began).Round(time.Minute),
		t.NotAfter.Sub(began).Round(time.Second))
	switch {
	case len(leaf.URIs) == 0:
		deviation = "the leaf has no URI; set the role's use_csr_sans=false and allowed_uri_sans=spiffe://TRUST-DOMAIN/*"
	case leaf.NotAfter.Before(t.NotAfter.Add(-clockSlack)):
		deviation = lives + "raise max_ttl of the role and of the mount, or renew the issuer"
	case leaf.NotAfter.After(t.NotAfter.Add(clockSlack)):
		deviation = lives + "compare Vault's clock with the ca's"
	case !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth):
		deviation = "the leaf is not for servers and clients; set the role's server_flag=true and client_flag=true"
	case leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		deviation = "the leaf is not for digital signatures; set the role's key_usage=DigitalSignature"
	default:
		t.NotAfter = leaf.NotAfter
		return nil
	}
	return signer.Errorf(signer.Refused, "%s at Vault: %s", what, deviation)
}
