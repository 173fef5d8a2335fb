package driver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"fairlead.dev/services/ca/internal/rotation"
)

// document is the ca's record: what its replicas have in common, and find again after a restart. It has no secret.
type document struct {
	rotation.State
	// Bundle is the trust bundle that was published last.
	Bundle bundle `json:"bundle,omitzero"`
	// File is the signer file that was followed last. Only another one begins a swap.
	File json.RawMessage `json:"file,omitempty"`
	// Dropped are roots that the signer in use has announced no longer; certificates may need them still.
	Dropped []dropped `json:"dropped,omitempty"`
	// NotBefore is when a rotation may begin by itself again, after an operator has ended one.
	NotBefore time.Time `json:"notBefore,omitzero"`
}

// bundle is a numbered trust bundle.
type bundle struct {
	Generation uint64 `json:"generation"`
	// Roots in PEM, sorted; Own are those of the signers among them.
	Roots []string `json:"roots"`
	Own   []string `json:"own"`
	// Tainted are the authority key identifiers of certificates that agents are to replace now.
	Tainted [][]byte `json:"tainted,omitempty"`
}

type dropped struct {
	Root  string    `json:"root"`
	Until time.Time `json:"until"`
}

// decode reads a record.
func decode(data []byte) (document, error) {
	var d document
	err := json.Unmarshal(data, &d)
	if err == nil && d.Current.ID == 0 {
		err = errors.New("it names no signer")
	}
	if err != nil {
		return d, fmt.Errorf("the ca's state is not what a ca wrote (%w); restore it from a backup", err)
	}
	return d, nil
}

// needed are the roots that the signers need in the bundle.
func (d document) needed(now time.Time) []string {
	all := slices.Clone(d.Roots())
	for _, r := range d.Dropped {
		if now.Before(r.Until) {
			all = append(all, r.Root)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// signer returns the one of an ID, nil if there is none.
func (d *document) signer(id uint64) *rotation.Signer {
	switch {
	case d.Current.ID == id:
		return &d.Current
	case d.Next != nil && d.Next.ID == id:
		next := *d.Next // the document that this one was copied from keeps its own
		d.Next = &next
		return d.Next
	}
	d.Old = slices.Clone(d.Old)
	for i := range d.Old {
		if d.Old[i].ID == id {
			return &d.Old[i]
		}
	}
	return nil
}

// withRoots is the document once the signer in use has announced other roots. Those that it leaves out stay in the
// bundle for as long as certificates may need them.
func (d document) withRoots(id uint64, roots []string, until, now time.Time) document {
	s := d.signer(id)
	if s == nil || slices.Equal(s.Roots, roots) {
		return d
	}
	kept := slices.DeleteFunc(slices.Clone(d.Dropped), func(r dropped) bool {
		return slices.Contains(roots, r.Root) || !now.Before(r.Until)
	})
	for _, root := range s.Roots {
		if !slices.Contains(roots, root) {
			kept = append(kept, dropped{Root: root, Until: until})
		}
	}
	s.Roots, d.Dropped = roots, kept
	return d
}

// same compares two documents.
func same(a, b document) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
