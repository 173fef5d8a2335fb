package injectcheck

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/tag"
)

// Uninjected is why a Pod that was made has no proxy, by its own fields and the labels of its namespace; asked is the
// revision or tag that they name, if they ask for one.
func Uninjected(p *corev1.Pod, namespace map[string]string) (why, asked string) {
	own := p.Labels[contract.InjectLabel]
	if own == "" {
		own = p.Annotations[contract.InjectLabel]
	}
	revision := cmp.Or(namespace[contract.RevisionLabel], p.Labels[contract.RevisionLabel])
	switch {
	case own == "false":
		return contract.InjectLabel + " of the Pod is false", ""
	case p.Spec.HostNetwork:
		return "it is in the node's network (hostNetwork), in which nothing can be redirected", ""
	case namespace[contract.InjectionLabel] == "disabled":
		return fmt.Sprintf("namespace %s has the label %s=disabled", p.Namespace, contract.InjectionLabel), ""
	case namespace[contract.InjectionLabel] != "enabled" && revision == "" && own != "true":
		return fmt.Sprintf("neither namespace %s has the label %s=enabled, or %s with a revision, nor the Pod %s=true", p.Namespace,
			contract.InjectionLabel, contract.RevisionLabel, contract.InjectLabel), ""
	}
	if asked = revision; namespace[contract.InjectionLabel] == "enabled" {
		asked = ""
	}
	return fmt.Sprintf("it was made before it was to have one, or the injector of revision %s did not answer; `fairlead tag list` says "+
		"which revisions there are", cmp.Or(revision, tag.Default)), asked
}

// Nobodys says that no revision and no tag has the name that labels ask for; empty if one has, or none is known.
func Nobodys(asked string, known []string) string {
	if asked == "" || len(known) == 0 || slices.Contains(known, asked) {
		return ""
	}
	return fmt.Sprintf("its label %s or that of its namespace is %s, and no revision or tag is named so; there are %s (`fairlead tag list`)",
		contract.RevisionLabel, asked, strings.Join(known, ", "))
}
