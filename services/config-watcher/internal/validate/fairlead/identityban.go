// Package fairlead has the rules of Fairlead's own kinds.
package fairlead

import (
	"strings"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// maxBanReason bounds the reason in bytes. xds-server repeats it to every stream that it refuses.
const maxBanReason = 500

// Check applies the rules of the object's kind.
func Check(c *check.Checker, o *object.Object) {
	if b, ok := o.Body.(*object.IdentityBan); ok {
		identityBan(c, b)
	}
}

func identityBan(c *check.Checker, b *object.IdentityBan) {
	if _, _, ok := auth.ParseWorkload(b.Spec.Identity); !ok {
		c.Fail("spec.identity", b.Spec.Identity, "not the identity of a workload",
			"write spiffe://<trust domain>/ns/<namespace>/sa/<service account>")
	}
	if len(b.Spec.Reason) > maxBanReason || strings.ContainsFunc(b.Spec.Reason, func(r rune) bool { return r < ' ' }) {
		c.Fail("spec.reason", b.Spec.Reason, "longer than 500 bytes, or not one line", "say it in one short line")
	}
}
