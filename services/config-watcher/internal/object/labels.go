package object

import (
	"maps"
	"slices"
	"strings"
)

// HasLabels reports whether labels contain all labels of a selector. An empty selector selects everything.
func HasLabels(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// LabelText writes labels, or a selector, so that equal ones have equal text: "app=web,version=v1".
func LabelText(labels map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ",")
}
