package object

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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

// IdentityBan is an IdentityBan as users write it.
type IdentityBan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Identity string       `json:"identity"`
		Reason   string       `json:"reason,omitempty"`
		Until    *metav1.Time `json:"until,omitempty"`
	} `json:"spec"`
	// Status is what Kubernetes keeps; nothing reads it.
	Status map[string]any `json:"status,omitempty"`
}

// BanOf keeps of an IdentityBan what the mesh reads.
func BanOf(b *IdentityBan) *Ban {
	out := &Ban{Identity: b.Spec.Identity, Reason: b.Spec.Reason}
	if b.Spec.Until != nil {
		out.Until = b.Spec.Until.Time
	}
	return out
}
