package status

import (
	"cmp"
	"maps"
	"sync"

	"fairlead.dev/proto/fairlead/contract"
)

// Owner says which of several revisions of the control plane writes the status of an object of the Gateway API; all of
// them serve it. It is safe for concurrent use.
type Owner struct {
	revision string

	mu   sync.Mutex
	tags map[string]string
	// changes counts those of the tags.
	changes int
}

// NewOwner returns the owner of a control plane's revision; "" for none. Without tags there are none.
func NewOwner(revision string) *Owner {
	return &Owner{revision: cmp.Or(revision, contract.DefaultRevision)}
}

// SetTags takes over the revisions that tags stand for, by tag.
func (o *Owner) SetTags(tags map[string]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !maps.Equal(o.tags, tags) {
		o.tags, o.changes = tags, o.changes+1
	}
}

// version is another one after Writes may have changed its answers.
func (o *Owner) version() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changes
}

// Writes reports whether this control plane writes the status of an object with these labels in a namespace with those;
// see contract.RevisionOf.
func (o *Owner) Writes(labels, namespace map[string]string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return contract.RevisionOf(labels, namespace, o.tags) == o.revision
}
