// Package holders knows who has which certificate, and which generation of the trust bundle each holder verifies with.
// A swap of the signer waits by it until everybody trusts the next one, and until nobody needs the one before.
//
// A certificate counts from the moment it is issued until it expires or another takes its place:
//
//   - A Pod has one agent, so that the certificate which an identity was issued last in a Pod (by UID, from the token)
//     takes the place of all its earlier ones there.
//   - Elsewhere a certificate takes the place of its predecessor, with which the caller authenticated, if that is of
//     the same identity. Two renewals from one predecessor are a copied key, or a request that was repeated because
//     the answer got lost: nobody knows which, so both certificates count, and the one that nobody has is named until
//     it expires or an operator accepts it.
//   - A certificate whose caller was gone before the answer takes no place; what it was to replace counts on.
//   - Certificates of a Pod that was deleted do not count: Registry.Gone is told of it.
//
// An answer that is lost after it was sent cannot be told from one that arrived. Its caller asks again, as agents do
// after a back-off; until then its earlier certificate does not count although it is the one in use.
//
// Certificates that were replaced are remembered until they expire, at most four of each holder, because a stream may
// still be authenticated by one of them: what it acknowledges counts for the certificate that came after.
package holders

import (
	"crypto/sha256"
	"time"
)

// Fingerprint stands for a certificate: the first 16 bytes of the SHA-256 of its DER. The zero Fingerprint is none.
type Fingerprint = [16]byte

// FingerprintOf returns the fingerprint of a certificate in DER.
func FingerprintOf(der []byte) Fingerprint {
	sum := sha256.Sum256(der)
	return Fingerprint(sum[:16])
}

// Certificate is a leaf certificate that the ca has issued.
type Certificate struct {
	Fingerprint Fingerprint
	// Serial is the serial number in hexadecimal, Identity the SPIFFE ID.
	Serial, Identity string
	// Pod is namespace/name and PodUID the UID of the Pod whose token the caller has shown; "" if it has shown none.
	Pod, PodUID string
	// Signer is the ID of the signer; Epoch and Generation are of the bundle in the answer.
	Signer, Epoch, Generation uint64
	AuthorityKeyID            []byte
	// NotBefore of the certificate is not kept.
	NotBefore, NotAfter time.Time
	// Predecessor is the certificate of the same identity with which the caller authenticated; zero if it did
	// otherwise.
	Predecessor Fingerprint
	// Undelivered says that the caller was gone when the certificate was issued.
	Undelivered bool
	// At is when it was issued; zero means now.
	At time.Time
}

// Limits of what is kept of a certificate. Kubernetes' names and UIDs and SPIFFE IDs are shorter; what is longer is
// cut, except for identities, of which two must not become one.
const (
	maxText     = 320
	maxIdentity = 2048
	maxKeyID    = 64
	maxSerial   = 20
)
