// Package selfsigned is the Minter of a mesh that has no authority of its own: the ca makes a root, whose key a
// KeyManager holds, and signs its intermediates with it.
package selfsigned

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/services/ca/internal/signer"
)

// clockSkew is that of a verifier whose clock is behind: roots and intermediates are valid from that long before they
// were made.
const clockSkew = 10 * time.Minute

// Root is a self-signed root and its key.
type Root struct {
	Certificate *x509.Certificate
	key         crypto.Signer
	now         func() time.Time
}

var _ signer.Minter = (*Root)(nil)

// Config says how a root is made. All fields are required.
type Config struct {
	Keys        signer.KeyManager
	Algorithm   signer.Algorithm
	TrustDomain spiffeid.TrustDomain
	TTL         time.Duration
	Now         func() time.Time
}

// Make makes a root whose key has the name. Its URI is the trust domain's, as SPIFFE demands of a signing certificate
// (X509-SVID, section 2), and its organisation is the trust domain too, as in Istio's roots. A key of an earlier
// attempt that ended halfway is used.
func (c Config) Make(ctx context.Context, name string) (*Root, error) {
	key, err := c.Keys.Make(ctx, name, c.Algorithm)
	if errors.Is(err, signer.ErrKeyExists) {
		key, err = c.Keys.Find(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("key %s of the mesh's root: %w", name, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := c.Now().UTC().Truncate(time.Second)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{c.TrustDomain.Name()}, CommonName: "Fairlead root " + name},
		URIs: []*url.URL{c.TrustDomain.ID().URL()}, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(c.TTL),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the mesh's root with its key %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Root{Certificate: cert, key: key, now: c.Now}, nil
}

// Open finds the key of a root that was made.
func (c Config) Open(ctx context.Context, name string, cert *x509.Certificate) (*Root, error) {
	key, err := c.Keys.Find(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("key %s of the mesh's root: %w", name, err)
	}
	if !signer.SameKey(key.Public(), cert.PublicKey) {
		return nil, fmt.Errorf("key %s is not that of the mesh's root %q; restore both from the same backup", name, cert.Subject)
	}
	return &Root{Certificate: cert, key: key, now: c.Now}, nil
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	return serial.SetBit(serial, 126, 1), nil
}

// Mint implements signer.Minter. An intermediate ends with the root at the latest, and signs leaves only.
func (r *Root) Mint(_ context.Context, q signer.MintRequest) (chain, roots []*x509.Certificate, err error) {
	now := r.now().UTC().Truncate(time.Second)
	if !now.Before(r.Certificate.NotAfter) {
		return nil, nil, signer.Errorf(signer.Refused, "the mesh's root %q expired at %s; rotate it", r.Certificate.Subject,
			r.Certificate.NotAfter.UTC().Format(time.RFC3339))
	}
	serial, err := newSerial()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: q.Subject, URIs: q.URIs, NotBefore: latest(now.Add(-clockSkew), r.Certificate.NotBefore),
		NotAfter: earliest(now.Add(q.TTL), r.Certificate.NotAfter), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, r.Certificate, q.Key.Public(), r.key)
	if err != nil {
		if known, ok := errors.AsType[*signer.Error](err); ok { // of a key that is elsewhere
			return nil, nil, known
		}
		return nil, nil, signer.Errorf(signer.Refused, "sign an intermediate with the mesh's root: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	return []*x509.Certificate{cert}, []*x509.Certificate{r.Certificate}, nil
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Authorities implements signer.Minter.
func (r *Root) Authorities(context.Context) (*signer.Authorities, error) {
	return &signer.Authorities{Roots: []*x509.Certificate{r.Certificate}, NotBefore: r.Certificate.NotBefore,
		NotAfter: r.Certificate.NotAfter}, nil
}
