package status

import (
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
	switch {
	case missing:
		return &Condition{Type: ResolvedRefs, Reason: reasonKeys, Message: listed(problems)}
	case len(problems) > 0:
		return &Condition{Type: ResolvedRefs, Holds: true, Reason: reasonStaleKeys, Message: listed(problems)}
	default:
		return &Condition{Type: ResolvedRefs, Holds: true, Reason: reasonResolved, Message: "the keys of every issuer are there"}
	}
}

func sameCondition(a, b *Condition) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}
