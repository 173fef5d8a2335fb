package object

import "time"

// Ban is the body of an IdentityBan, which bans an identity from the mesh.
type Ban struct {
	// Identity is the SPIFFE URI of a workload.
	Identity string
	// Reason is repeated to the identity's owner when a stream or call is refused.
	Reason string
	// Until is when the ban ends; zero if it lasts until it is lifted.
	Until time.Time
}

// Ended reports whether the ban is over at a time.
func (b *Ban) Ended(now time.Time) bool { return !b.Until.IsZero() && !now.Before(b.Until) }
