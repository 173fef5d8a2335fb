package kinds

import (
	"maps"
	"slices"
	"strings"

	"fairlead.dev/pkg/nearest"
)

// runsPods are the kinds from which `fairlead up`, or a cluster, makes Pods.
var runsPods = map[string][]string{
	"apps":  {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"},
	"batch": {"Job", "CronJob"},
}

// RunsPodsVersion is the version of the kinds that describe Pods to be run.
const RunsPodsVersion = "v1"

// RunsPods reports whether a kind describes Pods to be run; the mesh reads those Pods.
func RunsPods(group, kind string) bool { return slices.Contains(runsPods[group], kind) }

// Similar guesses which known kind an unknown one stands for, as "v1 Service"; empty if no name is similar.
func Similar(kind string) string {
	known := Names()
	for _, group := range slices.Sorted(maps.Keys(runsPods)) {
		known = append(known, runsPods[group]...)
	}
	name := nearest.Name(kind, known)
	if name == "" {
		return ""
	}
	for group := range runsPods {
		if RunsPods(group, name) {
			return group + "/" + RunsPodsVersion + " " + name
		}
	}
	return Canonical(groupsOf(name)[0], name) + " " + name
}

// Mistaken returns the API version that is meant by a known kind in a group that can only be a mistake: an empty one,
// another one of Istio's, a part of the kind's own, or one written almost like it. It returns "" for all other groups:
// a kind of this name there is another API's.
func Mistaken(group, kind string) (meant string) {
	groups := groupsOf(kind)
	if len(groups) == 0 || slices.Contains(groups, group) {
		return ""
	}
	partOf := func(known string) bool {
		return strings.HasPrefix(known, group+".") || strings.HasSuffix(known, "."+group)
	}
	if near := nearest.Name(group, groups); near != "" {
		return Canonical(near, kind)
	}
	if i := slices.IndexFunc(groups, partOf); i >= 0 && group != "" {
		return Canonical(groups[i], kind)
	}
	if group == "" || OwnGroup(group) {
		return Canonical(groups[0], kind)
	}
	return ""
}
