package kinds

import (
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/services/ca/internal/signer"
)

// BuiltIn is the name of the signer of a ca without a signer file.
const BuiltIn = "self-signed"

// Root is a root of the ca's own in --ca-dir, which signs leaves itself: what a ca without a signer file has. It is on
// one disk, so that such a ca has one replica.
type Root struct {
	// TTL of the root, ten years by default.
	TTL metav1.Duration `json:"ttl,omitzero"`
}

// Check returns everything that is wrong with the root's part of the file.
func (r *Root) Check() error { return lifetime("ttl", r.TTL) }

// BuiltInSpec is the file that a ca without one would have.
func BuiltInSpec(ttl time.Duration) *Spec {
	return &Spec{APIVersion: APIVersion, Kind: Kind, Name: BuiltIn, Root: &Root{TTL: metav1.Duration{Duration: ttl}}}
}

// OpenRoot opens the root of a signer in --ca-dir, and makes it if it is missing.
type OpenRoot func(id uint64, ttl time.Duration) (signer.Issuer, error)

func (r *Root) open(id uint64, open OpenRoot) (signer.Issuer, error) {
	if open == nil {
		return nil, errors.New("root: this ca has no directory for it")
	}
	if r.TTL.Duration == 0 {
		return open(id, rootTTL)
	}
	return open(id, r.TTL.Duration)
}

// Is names the field of the file that chooses the signer, such as vault.
func (s *Spec) Is() string {
	for name, part := range s.parts() {
		if part != nil {
			return name
		}
	}
	return ""
}

// Renewable reports whether a rotation to the same file makes new keys: a signer that has its keys elsewhere is rotated
// there, and the ca follows.
func (s *Spec) Renewable() bool { return s.Root != nil || s.Intermediate != nil }

// Expires reports whether the roots of the signer are the ca's own, so that it rotates before they end.
func (s *Spec) Expires() bool {
	return s.Root != nil || s.Intermediate != nil && s.Intermediate.SelfSigned != nil
}
