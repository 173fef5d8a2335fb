// Package check has what the rules of several groups share: Checker, and its checks of single values such as a port, a
// duration, the labels of a selector or exportTo. The methods named after a field or a type check it; their first
// argument is its JSON path.
package check

import (
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Checker checks one object. The packages of the groups embed it.
type Checker struct {
	*decode.Verdict
	// Namespace is the object's; empty for a cluster-scoped object.
	Namespace string
}

// Unenforced refuses every object of a policy kind: one that is stored but not enforced would only look like
// protection.
func (c *Checker) Unenforced(o *object.Object, consequence string) {
	c.Fail("spec", nil, o.Key.Kind+" is not enforced by this version of Fairlead, "+consequence,
		"remove the object, or keep the workload out of reach by other means")
}

// Again records that item i of a list has the key k, and returns the last earlier item that has it.
func Again[K comparable](seen map[K]int, k K, i int) (earlier int, dup bool) {
	earlier, dup = seen[k]
	seen[k] = i
	return earlier, dup
}
