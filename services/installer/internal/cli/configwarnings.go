package cli

import (
	"fmt"
	"io"
	"slices"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// warningTexts returns the texts of warnings.
func warningTexts(list []*configv1.Warning) []string {
	return lists.Map(list, (*configv1.Warning).GetText)
}

// printNewWarnings prints the warnings about other objects that apply or delete has caused.
func printNewWarnings(out io.Writer, texts []string, dryRun bool) {
	became := "now wrong"
	if dryRun {
		became = "would be wrong"
	}
	for _, text := range texts {
		fmt.Fprintf(out, "warning: %s: %s\n", became, text)
	}
}

// withoutDeleted drops the warnings about objects that deleteObjects has deleted itself: it deletes one after the
// other, and the first deletion may cause a warning about an object that goes next.
func withoutDeleted(list []*configv1.Warning, deleted []*configv1.ObjectKey) []*configv1.Warning {
	return slices.DeleteFunc(list, func(w *configv1.Warning) bool {
		return slices.ContainsFunc(deleted, func(k *configv1.ObjectKey) bool {
			o := w.GetObject()
			return o.GetKind() == k.GetKind() && o.GetNamespace() == k.GetNamespace() && o.GetName() == k.GetName()
		})
	})
}
