package validate

import (
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/services/config-watcher/internal/object"
)

// GroupFairlead is the API group of Fairlead's own kinds.
const GroupFairlead = "fairlead.dev"

// KindIdentityBan is the kind that bans an identity from the mesh.
const KindIdentityBan = "IdentityBan"

// maxBanReason bounds the reason in bytes. xds-server repeats it to every stream that it refuses.
const maxBanReason = 500

// identityBan is an IdentityBan as users write it.
type identityBan struct {
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

func checkIdentityBan(c *checker, _ *object.Object, b *identityBan) {
	if _, _, ok := WorkloadIdentity(b.Spec.Identity); !ok {
		c.fail("spec.identity", b.Spec.Identity, "not the identity of a workload",
			"write spiffe://<trust domain>/ns/<namespace>/sa/<service account>")
	}
	if len(b.Spec.Reason) > maxBanReason || strings.ContainsFunc(b.Spec.Reason, func(r rune) bool { return r < ' ' }) {
		c.fail("spec.reason", b.Spec.Reason, "longer than 500 bytes, or not one line", "say it in one short line")
	}
}

func (b *identityBan) kept() *object.Ban {
	out := &object.Ban{Identity: b.Spec.Identity, Reason: b.Spec.Reason}
	if b.Spec.Until != nil {
		out.Until = b.Spec.Until.Time
	}
	return out
}

// WorkloadIdentity splits spiffe://<trust domain>/ns/<namespace>/sa/<service account>; ok is false for every other
// text.
func WorkloadIdentity(identity string) (namespace, account string, ok bool) {
	id, err := spiffeid.FromString(identity)
	if err != nil || id.String() != identity {
		return "", "", false
	}
	return auth.WorkloadOf(id)
}

// IsIdentityBan reports whether a key is an IdentityBan's.
func IsIdentityBan(k object.Key) bool { return k.Group == GroupFairlead && k.Kind == KindIdentityBan }
