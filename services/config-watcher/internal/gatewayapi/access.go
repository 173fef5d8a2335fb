package gatewayapi

import "fairlead.dev/services/config-watcher/internal/object"

// Access is what a ReferenceGrant gives to the objects of a kind in a namespace.
type Access struct {
	// Kind and Namespace are of those that refer.
	Kind, Namespace string
	To              object.Key
}

// note records whether a ReferenceGrant gives an access. Of Secrets package credential knows more: whom it has handed
// them to.
func (l *lookup) note(a Access, granted bool) bool {
	switch {
	case a.To.Kind == secret:
	case granted:
		l.has = append(l.has, a)
	default:
		l.lacks = append(l.lacks, a)
	}
	return granted
}

// compare tells which accesses have ended that the computation had before and asks for again.
func (l *lookup) compare() {
	for _, a := range l.access[l.of] {
		for _, lacked := range l.lacks {
			if lacked == a {
				l.result.Ended[a] = struct{}{}
			}
		}
	}
	if len(l.has) > 0 {
		l.access[l.of] = l.has
	} else {
		delete(l.access, l.of)
	}
}
