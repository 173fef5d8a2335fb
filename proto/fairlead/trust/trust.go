// Package trust signs and verifies trust bundles that reach their receivers by way of others: the ca signs, and agents
// and services verify what an xds-server passes on. Whoever passes a bundle on can hold it back, and nothing else.
package trust

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

// Bounds of a bundle.
const (
	// MaxBytes of an encoded SignedBundle: what an agent takes on its stream besides configuration.
	MaxBytes = 1 << 20
	// maxRoots verify a mesh during a rotation, with those of the meshes that it trusts beside it.
	maxRoots = 256
	// maxChain has the ca's certificate and its intermediates.
	maxChain = 6
)

// context is what the signature is about, so that no other signature of the ca's key is one of a bundle.
const context = "fairlead.ca.v1.SignedBundle\x00"

func digest(bundle []byte) []byte {
	h := sha256.New()
	h.Write([]byte(context))
	h.Write(bundle)
	return h.Sum(nil)
}

// Sign signs a bundle with the ca's own certificate, whose chain has no root.
func Sign(b *cav1.TrustBundle, own *tls.Certificate) (*cav1.SignedBundle, error) {
	key, ok := own.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("sign the trust bundle: the key of the ca's certificate cannot sign (%T)", own.PrivateKey)
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("encode the trust bundle: %w", err)
	}
	var opts crypto.SignerOpts = crypto.SHA256
	if _, isRSA := key.Public().(*rsa.PublicKey); isRSA {
		opts = &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256}
	}
	signature, err := key.Sign(rand.Reader, digest(text), opts)
	if err != nil {
		return nil, fmt.Errorf("sign the trust bundle: %w", err)
	}
	return &cav1.SignedBundle{Bundle: text, Signature: signature, CertificateChain: own.Certificate}, nil
}

// Receiver is what a receiver knows before a bundle comes.
type Receiver struct {
	// Roots are those that it verifies with now.
	Roots *x509.CertPool
	// CAs are the SPIFFE IDs that the ca may have.
	CAs []string
	// TrustDomain of the mesh.
	TrustDomain string
	// Epoch and Generation are those of the bundle that it has; 0 before the first.
	Epoch, Generation uint64
	Now               time.Time
}

// Verified is a bundle that the ca has signed.
type Verified struct {
	*cav1.TrustBundle
	// Roots are its certificates.
	Roots []*x509.Certificate
}

// Verify returns the bundle if a ca that the receiver trusts has signed it, and it is not older than what the receiver
// has. It never panics on what a server has sent.
func (r Receiver) Verify(s *cav1.SignedBundle) (*Verified, error) {
	if size := proto.Size(s); size > MaxBytes {
		return nil, fmt.Errorf("trust bundle: it has %d bytes, more than %d", size, MaxBytes)
	}
	if err := r.signed(s); err != nil {
		return nil, fmt.Errorf("trust bundle: %w", err)
	}
	b := &cav1.TrustBundle{}
	if err := proto.Unmarshal(s.GetBundle(), b); err != nil {
		return nil, fmt.Errorf("trust bundle: %w", err)
	}
	if b.GetTrustDomain() != r.TrustDomain {
		return nil, fmt.Errorf("trust bundle: it is of trust domain %q, not of %q", b.GetTrustDomain(), r.TrustDomain)
	}
	if b.GetEpoch() < r.Epoch || b.GetEpoch() == r.Epoch && b.GetGeneration() < r.Generation {
		return nil, fmt.Errorf("trust bundle: generation %d of epoch %d is older than generation %d of epoch %d, which is in use",
			b.GetGeneration(), b.GetEpoch(), r.Generation, r.Epoch)
	}
	out := &Verified{TrustBundle: b}
	if n := len(b.GetRootCertificates()); n == 0 || n > maxRoots {
		return nil, fmt.Errorf("trust bundle: it has %d roots, wanted 1 to %d", n, maxRoots)
	}
	for i, der := range b.GetRootCertificates() {
		root, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("trust bundle: root %d: %w", i, err)
		}
		if !root.IsCA || !root.BasicConstraintsValid {
			return nil, fmt.Errorf("trust bundle: root %d, %q, is no certificate authority", i, root.Subject)
		}
		out.Roots = append(out.Roots, root)
	}
	return out, nil
}

// signed checks who has signed, and the signature.
func (r Receiver) signed(s *cav1.SignedBundle) error {
	chain := s.GetCertificateChain()
	if len(chain) == 0 || len(chain) > maxChain {
		return fmt.Errorf("the ca's chain has %d certificates, wanted 1 to %d", len(chain), maxChain)
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return fmt.Errorf("the ca's certificate: %w", err)
	}
	intermediates := x509.NewCertPool()
	for _, der := range chain[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("an intermediate of the ca's certificate: %w", err)
		}
		intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: r.Roots, Intermediates: intermediates, CurrentTime: r.Now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		return fmt.Errorf("it is signed by nobody whom this workload trusts: %w", err)
	}
	if len(leaf.URIs) != 1 {
		return fmt.Errorf("the signing certificate has %d URIs, wanted 1", len(leaf.URIs))
	}
	if !slices.Contains(r.CAs, leaf.URIs[0].String()) {
		return fmt.Errorf("it is signed by %s, which is not the ca", leaf.URIs[0])
	}
	return checkSignature(leaf.PublicKey, digest(s.GetBundle()), s.GetSignature())
}

func checkSignature(key any, sum, signature []byte) error {
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		if ecdsa.VerifyASN1(key, sum, signature) {
			return nil
		}
	case *rsa.PublicKey:
		if rsa.VerifyPSS(key, crypto.SHA256, sum, signature, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}) == nil {
			return nil
		}
	default:
		return fmt.Errorf("the ca's certificate has a key that signs no bundles (%T)", key)
	}
	return errors.New("its signature is not that of the ca's certificate")
}
