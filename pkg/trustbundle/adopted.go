package trustbundle

import (
	"crypto/sha256"
	"crypto/x509"
	"maps"
	"time"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/trust"
)

// sums are the hashes of certificates.
type sums map[[sha256.Size]byte]bool

func sumsOf(certs []*x509.Certificate) sums {
	out := sums{}
	for _, c := range certs {
		out[sha256.Sum256(c.Raw)] = true
	}
	return out
}

func (s sums) has(c *x509.Certificate) bool { return s[sha256.Sum256(c.Raw)] }

func (s sums) equal(other sums) bool { return maps.Equal(s, other) }

// adopted is a bundle that the ca has signed and the agent uses. It is immutable.
type adopted struct {
	epoch, generation uint64
	roots             []*x509.Certificate
	tainted           [][]byte
	// lists of revoked certificates in DER.
	lists [][]byte
	// by are the roots with which it was verified, at this time.
	by []*x509.Certificate
	at time.Time
	// file are the roots that the root file had when the first bundle of this generation was adopted.
	file sums
	// signed is the encoded SignedBundle.
	signed []byte
}

// known is what a bundle meets: the one before, nil if there is none, and the root file's roots of now.
type known struct {
	adopted *adopted
	file    []*x509.Certificate
}

// fresh are the roots that the file has got since the adoption: an operator's word, for example that this machine is of
// another mesh now. Roots that the file had already do not count any more, so that a retired one is gone.
func (k known) fresh() []*x509.Certificate {
	if k.adopted == nil {
		return nil
	}
	var out []*x509.Certificate
	bundle := sumsOf(k.adopted.roots)
	for _, c := range k.file {
		if !k.adopted.file.has(c) && !bundle.has(c) {
			out = append(out, c)
		}
	}
	return out
}

// roots are what to verify with.
func (k known) roots() []*x509.Certificate {
	if k.adopted == nil {
		return k.file
	}
	return append(k.adopted.roots[:len(k.adopted.roots):len(k.adopted.roots)], k.fresh()...)
}

// verifier says who may have signed a bundle.
type verifier struct {
	cas         []string
	trustDomain string
	now         time.Time
}

// verify checks a bundle with these roots. It must not be older than the one before, unless that is nil.
func (v verifier) verify(s *cav1.SignedBundle, roots []*x509.Certificate, before *adopted) (*adopted, error) {
	r := trust.Receiver{Roots: x509.NewCertPool(), CAs: v.cas, TrustDomain: v.trustDomain, Now: v.now}
	for _, c := range roots {
		r.Roots.AddCert(c)
	}
	if before != nil {
		r.Epoch, r.Generation = before.epoch, before.generation
	}
	b, err := r.Verify(s)
	if err != nil {
		return nil, err
	}
	return &adopted{
		epoch: b.GetEpoch(), generation: b.GetGeneration(), roots: b.Roots, tainted: b.GetTaintedKeyIds(),
		lists: b.GetRevocationLists(), by: roots, at: v.now,
	}, nil
}

// take returns what is adopted when a bundle comes. The bundle before verifies the next one. If it does not, new roots
// of the root file do, and then generations are not compared: it is the bundle of another mesh, or of one whose ca has
// lost its state.
func (k known) take(s *cav1.SignedBundle, v verifier) (*adopted, error) {
	if k.adopted == nil {
		got, err := v.verify(s, k.file, nil)
		if err != nil {
			return nil, err
		}
		got.file = sumsOf(k.file)
		return got, nil
	}
	got, err := v.verify(s, k.adopted.roots, k.adopted)
	if err == nil {
		got.file = sumsOf(k.file)
		if got.epoch == k.adopted.epoch && got.generation == k.adopted.generation {
			got.file = k.adopted.file // it is the same one, signed again
		}
		return got, nil
	}
	if fresh := k.fresh(); len(fresh) > 0 {
		if other, otherErr := v.verify(s, fresh, nil); otherErr == nil {
			other.file = sumsOf(k.file)
			return other, nil
		}
	}
	return nil, err
}
