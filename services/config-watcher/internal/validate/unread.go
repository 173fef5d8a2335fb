package validate

import (
	"maps"
	"slices"
	"strings"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// UnreadError says that an object is of a kind that the mesh does not read, such as a Deployment or an HTTPRoute. It
// wraps ErrIgnored.
type UnreadError struct{ Problem object.Problem }

// Error implements error.
func (e *UnreadError) Error() string { return e.Problem.Error() }

// Unwrap returns ErrIgnored.
func (e *UnreadError) Unwrap() error { return ErrIgnored }

// runsPods are the kinds from which `fairlead up`, or a cluster, makes Pods.
var runsPods = map[string][]string{
	"apps":  {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"},
	"batch": {"Job", "CronJob"},
}

// runsPodsVersion is the version of these kinds.
const runsPodsVersion = "v1"

// RunsPods reports whether a kind describes Pods to be run; the mesh reads those Pods.
func RunsPods(group, kind string) bool { return slices.Contains(runsPods[group], kind) }

// unread is the error for an object whose kind is not in the table.
func unread(key object.Key, apiVersion string, doc *manifest.Document) error {
	// An unknown kind may be cluster-scoped: no default namespace.
	meta, _ := doc.Tree["metadata"].(map[string]any)
	key.Namespace, _ = meta["namespace"].(string)
	reason, remedy := "nobody reads this kind", "remove it; Fairlead reads Istio's kinds and the Kubernetes kinds that describe the mesh"
	if meant := meantKind(key); meant != "" {
		remedy = "did you mean " + meant + "?"
	}
	switch {
	case RunsPods(key.Group, key.Kind):
		reason, remedy = "the mesh reads Pods, not this kind", "`fairlead up -f` or a cluster runs what it describes"
	case key.Group == GroupGatewayAPI || key.Group == "networking.k8s.io" && key.Kind == "Ingress":
		remedy = "write a Gateway and a VirtualService of " + Canonical(GroupNetworking, "Gateway")
	}
	return &UnreadError{object.Problem{
		Location: doc.Location(), Object: key.String(), Field: "kind", Value: apiVersion + " " + key.Kind, Reason: reason, Remedy: remedy,
	}}
}

// meantKind guesses which known kind an unknown one stands for, as "v1 Service"; empty if no name is similar.
func meantKind(key object.Key) string {
	known := KindNames()
	for _, group := range slices.Sorted(maps.Keys(runsPods)) {
		known = append(known, runsPods[group]...)
	}
	name := nearest.Name(key.Kind, known)
	if name == "" {
		return ""
	}
	for group := range runsPods {
		if RunsPods(group, name) {
			return group + "/" + runsPodsVersion + " " + name
		}
	}
	return Canonical(GroupsOf(name)[0], name) + " " + name
}

// mistakenGroup reports whether a known kind has a group that can only be a mistake: an empty one, another one of
// Istio's, a part of the kind's own, or one written almost like it. A kind of this name in any other group is another
// API's.
func mistakenGroup(key object.Key) bool {
	groups := GroupsOf(key.Kind)
	if len(groups) == 0 || slices.Contains(groups, key.Group) {
		return false
	}
	partOf := func(group string) bool {
		return strings.HasPrefix(group, key.Group+".") || strings.HasSuffix(group, "."+key.Group)
	}
	return key.Group == "" || OwnGroup(key.Group) || nearest.Name(key.Group, groups) != "" || slices.ContainsFunc(groups, partOf)
}

// KindNames lists every kind that is read, sorted.
func KindNames() []string {
	var out []string
	for i := range kinds {
		out = append(out, kinds[i].name)
	}
	slices.Sort(out)
	return out
}
