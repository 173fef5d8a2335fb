package status

import (
	"fmt"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/jwks"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// keysCondition is the condition ResolvedRefs of a RequestAuthentication: whether the keys of its issuers are there. It
// holds, and tells, while last good keys count that cannot be fetched again. nil for objects of other kinds.
func keysCondition(o *object.Object, of func(object.Key) ([]string, bool)) *Condition {
	if of == nil || o.Key.Group != kinds.GroupSecurity || o.Key.Kind != "RequestAuthentication" {
		return nil
	}
	problems, missing := of(o.Key)
	if inline := unusableInline(o); len(inline) > 0 {
		problems, missing = append(inline, problems...), true
	}
	switch {
	case missing:
		return &Condition{Type: ResolvedRefs, Reason: reasonKeys, Message: listed(problems)}
	case len(problems) > 0:
		return &Condition{Type: ResolvedRefs, Holds: true, Reason: reasonStaleKeys, Message: listed(problems)}
	default:
		return &Condition{Type: ResolvedRefs, Holds: true, Reason: reasonResolved, Message: "the keys of every issuer are there"}
	}
}

// unusableInline lists the rules of a RequestAuthentication whose inline keys no token can be verified with.
func unusableInline(o *object.Object) (out []string) {
	spec, _ := o.Body.(*security.RequestAuthentication)
	for i, rule := range spec.GetJwtRules() {
		if rule.GetJwks() == "" {
			continue
		}
		if _, err := jwks.Parse([]byte(rule.GetJwks())); err != nil {
			out = append(out, fmt.Sprintf("no key in spec.jwtRules[%d].jwks can be used, tokens of issuer %s are refused; write a public key of it",
				i, rule.GetIssuer()))
		}
	}
	return out
}

func sameCondition(a, b *Condition) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}
