package validate

import (
	"strings"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/services/config-watcher/internal/object"
)

// maxBanReason bounds the reason in bytes. xds-server repeats it to every stream that it refuses.
const maxBanReason = 500

func checkIdentityBan(c *checker, _ *object.Object, b *object.IdentityBan) {
	if _, _, ok := auth.ParseWorkload(b.Spec.Identity); !ok {
		c.fail("spec.identity", b.Spec.Identity, "not the identity of a workload",
			"write spiffe://<trust domain>/ns/<namespace>/sa/<service account>")
	}
	if len(b.Spec.Reason) > maxBanReason || strings.ContainsFunc(b.Spec.Reason, func(r rune) bool { return r < ' ' }) {
		c.fail("spec.reason", b.Spec.Reason, "longer than 500 bytes, or not one line", "say it in one short line")
	}
}
