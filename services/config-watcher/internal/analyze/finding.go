// Package analyze finds mistakes that one object alone does not show: references to objects that do not exist, and
// objects that older ones leave without effect. Package validate checks each object alone and refuses it; a finding is
// a warning, because the missing object may come later.
//
// Package findings feeds the running mesh to Mesh and keeps the results; Mesh.DryRun previews changes for the config
// API. Each check is a function of one object and of what it reads through a reader. The reader records the topics that
// the check read, so that a change repeats only the checks that read something about it.
package analyze

import (
	"cmp"
	"slices"
	"strings"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Severity says how bad a finding is.
type Severity string

// Severities. All findings of a running mesh are warnings: each may be intended, or repaired by an object that comes
// later. `fairlead analyze` tells of them with the severity of their description.
const (
	Info    Severity = "info"
	Warning Severity = "warning"
	Error   Severity = "error"
)

// Code names a kind of finding. Codes are stable, because people search for them and tools filter by them.
type Code string

// Anchor is the code's anchor in the reference page, docs/reference/findings.md.
func (c Code) Anchor() string { return strings.ToLower(string(c)) }

// Finding is one mistake about one object.
type Finding struct {
	Code     Code
	Severity Severity
	Key      object.Key
	// Source is the source that delivered the object.
	Source string
	object.Problem
}

// Error renders the finding on one line, with its code at the end.
func (f Finding) Error() string { return f.Problem.Error() + " [" + string(f.Code) + "]" }

// Compare orders findings by object, field and code.
func (f Finding) Compare(o Finding) int {
	return cmp.Or(f.Key.Compare(o.Key), cmp.Compare(f.Field, o.Field), cmp.Compare(f.Code, o.Code),
		strings.Compare(f.Problem.Error(), o.Problem.Error()))
}

// sorted orders findings and removes duplicates.
func sorted(list []Finding) []Finding {
	slices.SortFunc(list, Finding.Compare)
	return slices.Compact(list)
}
