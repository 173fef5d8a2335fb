package status

import (
	"cmp"
	"sync"

	"fairlead.dev/proto/fairlead/contract"
)

// Owner says which of several revisions of the control plane writes the status of an object of the Gateway API; all of
// them serve it. It is safe for concurrent use.
type Owner struct {
	revision string

	mu   sync.Mutex
	tags map[string]string
}

// NewOwner returns the owner of a control plane's revision; "" for none. Without tags there are none.
func NewOwner(revision string) *Owner {
	return &Owner{revision: cmp.Or(revision, contract.DefaultRevision)}
}

// SetTags takes over the revisions that tags stand for, by tag.
func (o *Owner) SetTags(tags map[string]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tags = tags
}

// Writes reports whether this control plane writes the status of an object with these labels in a namespace with those;
// see contract.RevisionOf.
func (o *Owner) Writes(labels, namespace map[string]string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return contract.RevisionOf(labels, namespace, o.tags) == o.revision
}
