// Package analyze judges objects by what other objects say: references to what does not exist, and objects that older
// ones leave without an effect. Package validate judges each object alone and refuses it; what is found here is a
// warning, since the missing part may come later.
//
// Mesh keeps the objects indexed. Each check is a pure function of one object and of what it reads through a reader,
// which records what was read: a change judges those objects anew that have read something about it, and no others.
package analyze

import (
	"cmp"
	"slices"
	"strings"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Severity says how bad a finding is.
type Severity string

// Warning is the severity of what may be on purpose, or not there yet.
const Warning Severity = "warning"

// Code names a kind of finding. Codes are stable: people search for them, and tools filter by them.
type Code string

// Anchor is where the reference page, docs/reference/findings.md, tells of the code.
func (c Code) Anchor() string { return strings.ToLower(string(c)) }

// Finding is one thing that is wrong with an object in the mesh that it is in.
type Finding struct {
	Code     Code
	Severity Severity
	Key      object.Key
	// Source has delivered the object.
	Source string
	object.Problem
}

// Error renders the finding on one line, its code last.
func (f Finding) Error() string { return f.Problem.Error() + " [" + string(f.Code) + "]" }

// Compare orders findings by object, field and code.
func (f Finding) Compare(o Finding) int {
	return cmp.Or(f.Key.Compare(o.Key), cmp.Compare(f.Field, o.Field), cmp.Compare(f.Code, o.Code), strings.Compare(f.Problem.Error(), o.Problem.Error()))
}

// sorted orders findings and drops repetitions.
func sorted(list []Finding) []Finding {
	slices.SortFunc(list, Finding.Compare)
	return slices.Compact(list)
}
