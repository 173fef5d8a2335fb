// Package inventory keeps in the cluster what an installation consists of: for each revision a Record, and one for each
// installation of gateways with a name of its own, in Secrets of the control plane's namespace. Package apply writes it
// as the union of old and new before it applies, and narrows it afterwards, so that a run that is cut short is
// completed by the next. Prune is what an earlier record has and a new one has not.
package inventory

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/tree"
)

// Default is the revision of an installation that names none.
const Default = "default"

// maxPast bounds the earlier installations of a record.
const maxPast = 5

// State says how far an installation is.
type State string

// The states of a record.
const (
	// Installed is the state after everything was applied.
	Installed State = "installed"
	// Applying is the state from before the first object is applied. A run that was cut short leaves it.
	Applying State = "applying"
	// Removing is the same for an uninstall.
	Removing State = "removing"
	// Removed is the state of a revision of which only objects are left that an uninstall keeps.
	Removed State = "removed"
)

// Entry is one object of an installation.
type Entry struct {
	cluster.ID
	// Component is the label of its component; empty for a namespace that no chart has.
	Component string `json:"component,omitempty"`
	// Adopted is set for a namespace that was there before: it is not deleted.
	Adopted bool `json:"adopted,omitempty"`
	// Replicas are the Pods that the installation asks for, at least; 0 for none, and where that is not known.
	Replicas int64 `json:"replicas,omitempty"`
}

// Installation is what was asked for.
type Installation struct {
	// Spec is the IstioOperator's spec, profiles included, and Profile the one that was chosen.
	Spec    tree.Map `json:"spec,omitempty"`
	Profile string   `json:"profile,omitempty"`
	// Hash is of the objects.
	Hash string `json:"hash,omitempty"`
	// Version is the installer's, Package that of the install package.
	Version string `json:"version,omitempty"`
	Package string `json:"package,omitempty"`
	// At is when it was completed, in RFC 3339 and UTC; empty in inventories of releases that did not write it. Of one
	// that failed it is when it was begun.
	At string `json:"at,omitempty"`
	// Failed is set for one that was begun, and never completed.
	Failed bool `json:"failed,omitempty"`
}

// Holder is an IstioOperator in the cluster that decides what a revision is, by an operator that reconciles it.
type Holder struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Lease is that of the operator, NAMESPACE/NAME.
	Lease string `json:"lease"`
}

// ID names the object.
func (h Holder) ID() cluster.ID {
	return cluster.ID{Group: "install.istio.io", Version: "v1alpha1", Kind: "IstioOperator", Namespace: h.Namespace, Name: h.Name}
}

// Is says whether the holder is that object. It may be nil: an installation that no operator holds.
func (h *Holder) Is(namespace, name string) bool {
	return h != nil && h.Namespace == namespace && h.Name == name
}

// Record is the inventory of a revision.
type Record struct {
	Revision string `json:"revision"`
	// Name is that of an installation of gateways alone beside the revision's own, as Istio's script of east-west
	// gateways makes one; empty for the revision's own.
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace"`
	State     State  `json:"state"`
	// Holder is nil for an installation of the command line.
	Holder *Holder `json:"holder,omitempty"`
	// Installation is the last that was completed; Past are those before it, the latest first.
	Installation
	Past []Installation `json:"past,omitempty"`
	// Attempt is the one that is being applied, or was cut short; nil if the last one was completed.
	Attempt *Installation `json:"attempt,omitempty"`
	// Objects in the order in which they are applied.
	Objects []Entry `json:"objects"`

	// head is the Secret that the record was read from; nil for one that was not stored.
	head *unstructured.Unstructured
	text []byte
}

// key is the revision's name, with that of the installation after it.
func (r *Record) key() string { return key(r.Revision, r.Name) }

func key(revision, name string) string {
	if name == "" {
		return revision
	}
	return revision + "." + name
}

// String is what people call the record's installation.
func (r *Record) String() string { return Title(r.Revision, r.Name) + " in " + r.Namespace }

// Title is what people call an installation: its revision, and before that its name, if it has one.
func Title(revision, name string) string {
	if name == "" {
		return "revision " + revision
	}
	return "installation " + name + " of revision " + revision
}

// Stored says whether the record is in the cluster.
func (r *Record) Stored() bool { return r.head != nil }

// Has says whether an object is in the record.
func (r *Record) Has(id cluster.ID) bool {
	key := id.Key()
	return slices.ContainsFunc(r.Objects, func(e Entry) bool { return e.Key() == key })
}

// Begin notes an installation that is being applied; now has the time. What was begun before, and is something else,
// has failed.
func (r *Record) Begin(now Installation) {
	r.abandon(now.Hash)
	if r.Attempt == nil || r.Attempt.Hash != now.Hash {
		r.Attempt = &now
	}
	r.State = Applying
}

// abandon makes what was begun a past installation, unless that goes on, or what was completed was begun again. Of
// failed ones the last is kept, so that they do not take the places of those that were completed.
func (r *Record) abandon(goesOn string) {
	failed := r.Attempt
	if failed == nil || failed.Hash == goesOn || failed.Hash == r.Hash {
		return
	}
	r.Attempt, failed.Failed = nil, true
	r.push(*failed)
}

func (r *Record) push(past Installation) {
	r.Past = slices.DeleteFunc(r.Past, func(i Installation) bool { return i.Failed && past.Failed })
	r.Past = append([]Installation{past}, r.Past...)
	r.Past = r.Past[:min(len(r.Past), maxPast)]
}

// Now is what was asked for last, completed or not.
func (r *Record) Now() Installation {
	if r.Attempt != nil {
		return *r.Attempt
	}
	return r.Installation
}

// Earlier are the installations that a rollback can bring back, the latest first: what was completed last, if something
// was begun since, and those before it.
func (r *Record) Earlier() []Installation {
	if r.State == Applying && r.Hash != "" {
		return append([]Installation{r.Installation}, r.Past...)
	}
	return r.Past
}

// Remember makes an installation the record's, and the one before a past one if it differs. What is the same keeps its
// time.
func (r *Record) Remember(now Installation) {
	if r.Hash != "" && r.Hash == now.Hash {
		now.At = r.At
	}
	if before := r.Installation; before.Hash != "" && before.Hash != now.Hash {
		r.push(before)
	}
	r.abandon(now.Hash)
	r.Installation, r.Attempt, r.State = now, nil, Installed
}

// Union returns a's entries in their order, and those of b that a has not, before them: what is removed last was
// applied first.
func Union(a, b []Entry) []Entry { return append(Difference(b, a), a...) }

// Difference returns the entries of a that b has not.
func Difference(a, b []Entry) []Entry {
	has := map[cluster.ID]bool{}
	for _, e := range b {
		has[e.Key()] = true
	}
	var out []Entry
	for _, e := range a {
		if !has[e.Key()] {
			out = append(out, e)
		}
	}
	return out
}

// Find returns the record of a revision in a namespace, or of the installation with a name beside it, from List; a new
// one if there is none.
func Find(all []*Record, revision, namespace, name string) *Record {
	for _, r := range all {
		if r.Revision == revision && r.Namespace == namespace && r.Name == name {
			return r
		}
	}
	return &Record{Revision: revision, Namespace: namespace, Name: name}
}

// Holders says which other records hold each object: an object that one holds is not pruned.
type Holders map[cluster.ID]string

// Others returns the holders of objects among all records but one.
func Others(all []*Record, but *Record) Holders {
	h := Holders{}
	for _, r := range all {
		if r == but {
			continue
		}
		for _, e := range r.Objects {
			h[e.Key()] = r.String()
		}
	}
	return h
}

// Revisions returns the names of records' revisions, sorted.
func Revisions(all []*Record) []string {
	names := map[string]bool{}
	for _, r := range all {
		names[r.Revision] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Fits fails if a record with an installation and its objects would be larger than what is kept in the cluster.
func Fits(revision string, now Installation, objects []Entry) error {
	r := Record{Revision: revision, Installation: now, Objects: objects}
	_, err := r.fit()
	return err
}

// fit encodes the record. The oldest past installations are left out while it is too large, and then the attempt.
func (r *Record) fit() ([]byte, error) {
	for {
		text, err := r.encode()
		switch {
		case err == nil:
			return text, nil
		case len(r.Past) > 0:
			r.Past = r.Past[:len(r.Past)-1]
		case r.Attempt != nil:
			r.Attempt = nil
		default:
			return nil, err
		}
	}
}

// Save stores the record, unless the cluster has it just so. It fails if the record was changed since it was read.
func (r *Record) Save(ctx context.Context, c *cluster.Client) error {
	text, err := r.fit()
	if err != nil {
		return err
	}
	if err := mark(ctx, c, r.Namespace); err != nil {
		return err
	}
	if r.head != nil && slices.Equal(text, r.text) {
		return nil
	}
	if r.head, err = store(ctx, c, r, text); err != nil {
		return err
	}
	r.text = text
	return nil
}

// Unchanged fails if the stored record is another than the one that was read or saved last.
func (r *Record) Unchanged(ctx context.Context, c *cluster.Client) error {
	live, err := c.Get(ctx, headID(r.Namespace, r.key()))
	if err != nil {
		return err
	}
	if live == nil || r.head == nil || live.GetResourceVersion() != r.head.GetResourceVersion() {
		return errRace(r)
	}
	return nil
}

func errRace(r *Record) error {
	return fmt.Errorf("the inventory of %s was changed by another installation that runs now: nothing more is changed; run this again when "+
		"that one has ended", r)
}

// Remove deletes the record.
func (r *Record) Remove(ctx context.Context, c *cluster.Client) error {
	if r.head == nil {
		return nil
	}
	for _, name := range chunkNames(r.head) {
		if err := c.Delete(ctx, secretID(r.Namespace, name), ""); err != nil {
			return err
		}
	}
	if err := c.Delete(ctx, cluster.Of(r.head), r.head.GetUID()); err != nil {
		return err
	}
	r.head, r.text = nil, nil
	return unmark(ctx, c, r.Namespace)
}
