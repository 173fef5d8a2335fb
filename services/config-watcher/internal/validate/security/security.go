// Package security has the rules of the kinds of group security.istio.io.
package security

import (
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

type checker struct{ *check.Checker }

// Check applies the rules of the object's kind.
func Check(base *check.Checker, o *object.Object) {
	c := checker{base}
	switch b := o.Body.(type) {
	case *security.PeerAuthentication:
		c.peerAuthentication(b)
	case *security.RequestAuthentication:
		c.Unenforced(o, "tokens would not be verified")
	case *security.AuthorizationPolicy:
		c.Unenforced(o, "access would not be restricted")
	}
}
