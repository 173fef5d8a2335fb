// Package credential keeps the TLS credentials of gateways apart from revisions and serves them with
// SecretService.Watch (Server). Table holds the credentials that sources deliver; References knows which Workload may
// use which one, from the Gateways and DestinationRules of the newest revision. A credential is sent to an xds-server
// only by reference and only on behalf of a proxy that may use it.
package credential

import (
	"strings"
	"sync"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// AuthoritySuffix marks a reference to the CA certificates of a credential.
const AuthoritySuffix = "-cacert"

// Kinds of the objects that have credentials.
const (
	kindSecret    = "Secret"
	kindConfigMap = "ConfigMap"
)

// Ref names a credential.
type Ref struct{ Namespace, Name string }

// Table holds the newest credential of every Secret that has one, and the CA certificates of ConfigMaps. It is safe for
// concurrent use.
type Table struct {
	// Notifier tells when a credential changes.
	notify.Notifier

	mu     sync.Mutex
	held   map[Ref]*object.Credential
	public map[Ref]*object.Credential // of ConfigMaps
	there  map[Ref]bool               // Secrets, with a credential or without
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{held: map[Ref]*object.Credential{}, public: map[Ref]*object.Credential{}, there: map[Ref]bool{}}
}

// Take stores the credentials among the changes and returns the other changes, which may become part of a revision. In
// the place of a Secret it returns its CredentialState; a ConfigMap, which is public, it returns too.
func (t *Table) Take(changes []normalise.Change) (others []normalise.Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	touched := false
	for _, c := range changes {
		held := t.of(c.Key)
		if held == nil {
			others = append(others, c)
			continue
		}
		var now *object.Credential
		if c.Object != nil {
			now, _ = c.Object.Body.(*object.Credential)
		}
		ref := Ref{c.Key.Namespace, c.Key.Name}
		same := now.Version() == held[ref].Version()
		if c.Key.Kind == kindConfigMap {
			others = append(others, c)
		} else if there := c.Object != nil; !same || there != t.there[ref] {
			others = append(others, StateOf(c.Key, c.Object, now))
			if t.there[ref] = there; !there {
				delete(t.there, ref)
			}
		}
		if same {
			continue
		}
		touched = true
		if now == nil {
			delete(held, ref)
		} else {
			held[ref] = now
		}
	}
	if touched {
		t.Notify()
	}
	return others
}

// Has reports whether a Secret or ConfigMap is known to be there.
func (t *Table) Has(k object.Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ref := Ref{k.Namespace, k.Name}
	return k.Kind == kindSecret && t.there[ref] || k.Kind == kindConfigMap && t.public[ref] != nil
}

// of returns the map for an object's credentials; nil if objects of its kind, or the mesh configuration's ConfigMap,
// are none.
func (t *Table) of(k object.Key) map[Ref]*object.Credential {
	switch {
	case k.Group != "" || kinds.IsMeshConfig(k):
		return nil
	case k.Kind == kindSecret:
		return t.held
	case k.Kind == kindConfigMap:
		return t.public
	default:
		return nil
	}
}

// Get returns the credential of a reference; nil if there is none. For "<name>-cacert" it returns only the CA
// certificates: those of the Secret <name>-cacert, else of the Secret <name>, else of the ConfigMaps of these names.
func (t *Table) Get(ref Ref) *object.Credential {
	t.mu.Lock()
	defer t.mu.Unlock()
	base, ok := strings.CutSuffix(ref.Name, AuthoritySuffix)
	if !ok {
		return t.held[ref]
	}
	if a := t.held[ref].Authority(); a != nil {
		return a
	}
	if a := t.held[Ref{ref.Namespace, base}].Authority(); a != nil {
		return a
	}
	if a := t.public[ref]; a != nil {
		return a
	}
	return t.public[Ref{ref.Namespace, base}]
}
