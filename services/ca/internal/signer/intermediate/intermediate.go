// Package intermediate makes the intermediate certificates that the ca signs leaves with: a KeyManager makes the key, a
// Minter signs the certificate. Made is what is kept of one between restarts, and shared by replicas; Open makes an
// Issuer of it.
package intermediate

import (
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/services/ca/internal/held"
	"fairlead.dev/services/ca/internal/signer"
)

// Config says how intermediates are made. All fields but DNSNames are required.
type Config struct {
	Keys        signer.KeyManager
	Minter      signer.Minter
	Algorithm   signer.Algorithm
	TrustDomain spiffeid.TrustDomain
	// TTL is the lifetime that intermediates are to have, MinTTL the one that they must have: leaves are cut to what is
	// left of it, and the next intermediate is made at half of it.
	TTL, MinTTL time.Duration
	// DNSNames are those that some leaves have, such as the ca's own.
	DNSNames []string
}

// Made is one intermediate. It has nothing secret.
type Made struct {
	// Key is the name of the key with the KeyManager.
	Key string `json:"key"`
	// Chain in PEM has the intermediate first, and then what is between it and a root; one certificate each.
	Chain []string `json:"chain"`
	// Roots in PEM verify the chain.
	Roots []string `json:"roots"`
}

// Make makes a key of the name and has it certified. It returns what was made once a leaf of it would verify. A key of
// an earlier attempt that ended halfway is used. Errors are of type *signer.Error, or of the KeyManager.
func (c Config) Make(ctx context.Context, name string, now time.Time) (*Made, error) {
	key, err := c.Keys.Make(ctx, name, c.Algorithm)
	if errors.Is(err, signer.ErrKeyExists) {
		key, err = c.Keys.Find(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("key %s of the ca's intermediate: %w", name, err)
	}
	chain, roots, err := c.Minter.Mint(ctx, signer.MintRequest{
		Key: key, Subject: pkix.Name{Organization: []string{c.TrustDomain.Name()}, CommonName: "Fairlead " + name},
		URIs: []*url.URL{c.TrustDomain.ID().URL()}, TTL: c.TTL,
	})
	if err != nil {
		return nil, err
	}
	if len(chain) == 0 {
		return nil, signer.Errorf(signer.Lied, "the signer answered without a certificate for the ca's intermediate")
	}
	if err := c.check(held.Authority{Certificate: chain[0], Key: key, Chain: chain[1:], Roots: roots}, now); err != nil {
		return nil, err
	}
	return &Made{Key: name, Chain: encode(chain), Roots: encode(roots)}, nil
}

// check refuses an intermediate that the mesh cannot use, or that does not live long enough.
func (c Config) check(made held.Authority, now time.Time) error {
	var wrong []error
	for _, u := range made.Unsuited(held.Names{TrustDomain: c.TrustDomain, DNS: c.DNSNames}, now) {
		wrong = append(wrong, u)
	}
	if len(wrong) > 0 {
		return signer.Errorf(signer.Refused, "the mesh cannot use the intermediate that the signer made: %w", errors.Join(wrong...))
	}
	if left := made.Certificate.NotAfter.Sub(now); left < c.MinTTL {
		return signer.Errorf(signer.Refused, "the signer made an intermediate that ends in %s, and at least %s are needed: have it allow longer "+
			"ones, or shorten the lifetime of leaves", left.Round(time.Second), c.MinTTL)
	}
	return nil
}

// Open makes the Issuer of an intermediate.
func Open(ctx context.Context, keys signer.KeyManager, m *Made) (*held.Signer, error) {
	key, err := keys.Find(ctx, m.Key)
	if err != nil {
		return nil, fmt.Errorf("key %s of the ca's intermediate: %w", m.Key, err)
	}
	chain, err := decode(m.Chain)
	if err != nil {
		return nil, fmt.Errorf("the ca's record of its intermediate: %w", err)
	}
	roots, err := decode(m.Roots)
	if err != nil {
		return nil, fmt.Errorf("the ca's record of its intermediate's roots: %w", err)
	}
	return open(key, chain, roots)
}

func open(key crypto.Signer, chain, roots []*x509.Certificate) (*held.Signer, error) {
	return held.NewIssuer(held.Authority{Certificate: chain[0], Key: key, Chain: chain[1:], Roots: roots})
}

func encode(certs []*x509.Certificate) []string {
	var out []string
	for _, c := range certs {
		out = append(out, tlsconf.EncodeCertificate(c))
	}
	return out
}

func decode(texts []string) ([]*x509.Certificate, error) {
	if len(texts) == 0 {
		return nil, errors.New("there is no certificate")
	}
	var out []*x509.Certificate
	for _, text := range texts {
		certs, err := tlsconf.ParseCertificates([]byte(text))
		if err != nil {
			return nil, err
		}
		if len(certs) != 1 {
			return nil, fmt.Errorf("a text has %d certificates, wanted 1", len(certs))
		}
		out = append(out, certs[0])
	}
	return out, nil
}
