// Package security has the rules of the kinds of group security.istio.io.
package security

import (
	"strings"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/services/config-watcher/internal/manifest"
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
		c.requestAuthentication(b)
	case *security.AuthorizationPolicy:
		c.authorizationPolicy(o, b)
	}
}

// filled refuses empty values, and those that no request and no proxy's configuration can have.
func (c checker) filled(at string, list []string, what string) {
	for i, s := range list {
		if s == "" {
			c.Fail(manifest.Index(at, i), nil, what+" is empty", "write it, or remove it")
			continue
		}
		c.MatchText(manifest.Index(at, i), s)
	}
}

// inHeader refuses characters for which Envoy rejects a header's name or value.
func (c checker) inHeader(at, s string) {
	c.FailIf(strings.ContainsAny(s, "\r\n\x00"), at, s, "contains a line break or a NUL", "remove it")
}
