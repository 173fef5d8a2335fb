package mesh

import cav1 "fairlead.dev/proto/fairlead/ca/v1"

// WithSignedBundle returns the same revision with another trust bundle, which the ca has signed. Like credentials it is
// not part of a revision. The bundle is shared and must not be changed.
func (s *Snapshot) WithSignedBundle(b *cav1.SignedBundle) *Snapshot {
	with := *s
	with.signedBundle = b
	return &with
}

// SignedBundle returns the bundle, nil before the ca has sent one.
func (s *Snapshot) SignedBundle() *cav1.SignedBundle { return s.signedBundle }

// SignedBundleTopic names the answer of SignedBundle.
func SignedBundleTopic() Topic { return Topic{Subject: SubjectSignedBundle} }
