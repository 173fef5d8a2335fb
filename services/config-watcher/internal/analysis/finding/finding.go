// Package finding has what the two analyses find: Finding, and in one place every code with its severity and
// description (table.go), from which docs/reference/findings.md is generated, and the messages of Istio that no code
// stands for (istio.go). Packages running and whole make findings, package report prints them.
package finding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Finding is one mistake about one object, or about text that is no object.
type Finding struct {
	Code     Code
	Severity Severity
	Key      object.Key
	// Source is the source that delivered the object; empty in a whole analysis.
	Source string
	// FromFile is true for what a whole analysis has read from a file.
	FromFile bool
	object.Problem
}

// Istio is the code of Istio's message for the same mistake, such as "IST0101"; "" if there is none.
func (f Finding) Istio() string { return f.Code.Describe().Istio }

// Named reports whether a code names the finding: Fairlead's code, Istio's, or "*".
func (f Finding) Named(code string) bool {
	istio := f.Istio()
	return code == "*" || strings.EqualFold(code, string(f.Code)) || istio != "" && strings.EqualFold(code, istio)
}

// Error renders the finding on one line, with its code at the end.
func (f Finding) Error() string { return f.Problem.Error() + " [" + string(f.Code) + "]" }

// File and Line are the place of the finding; both are zero for an object of an API server.
func (f Finding) File() (file string, line int) {
	at := strings.LastIndexByte(f.Location, ':')
	if at < 0 {
		return f.Location, 0
	}
	if _, err := fmt.Sscanf(f.Location[at+1:], "%d", &line); err != nil {
		return f.Location, 0
	}
	return f.Location[:at], line
}

// Resource names the object as istioctl does: "VirtualService web.shop". It is empty for text that is no object.
func (f Finding) Resource() string {
	if f.Key.Kind == "" {
		return ""
	}
	return strings.TrimSuffix(f.Key.Kind+" "+f.Key.Name+"."+f.Key.Namespace, ".")
}

// Compare orders findings by object, field, code and place.
func (f Finding) Compare(o Finding) int {
	return cmp.Or(f.Key.Compare(o.Key), cmp.Compare(f.Field, o.Field), cmp.Compare(f.Code, o.Code), cmp.Compare(f.Location, o.Location),
		strings.Compare(f.Description(), o.Description()))
}

// Sort orders findings and removes duplicates.
func Sort(list []Finding) []Finding { return sortBy(list, Finding.Compare) }

// SortWorst is Sort with the worst severity first.
func SortWorst(list []Finding) []Finding {
	return sortBy(list, func(a, b Finding) int { return cmp.Or(cmp.Compare(rank[a.Severity], rank[b.Severity]), a.Compare(b)) })
}

func sortBy(list []Finding, compare func(a, b Finding) int) []Finding {
	slices.SortFunc(list, compare)
	return slices.CompactFunc(list, func(a, b Finding) bool { return compare(a, b) == 0 })
}
