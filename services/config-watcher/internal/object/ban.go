package object

import "time"

// Ban shuts an identity out of the mesh: the body of an IdentityBan.
type Ban struct {
	// Identity is the SPIFFE URI of a workload.
	Identity string
	// Reason is what the identity's owner is told.
	Reason string
	// Until is when the ban ends; zero if it lasts until it is lifted.
	Until time.Time
}

// Ended reports whether the ban is over at a time.
func (b *Ban) Ended(now time.Time) bool { return !b.Until.IsZero() && !now.Before(b.Until) }
