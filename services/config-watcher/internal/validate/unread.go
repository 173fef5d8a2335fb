package validate

import (
	"slices"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// UnreadError says that an object is of a kind that nobody in the mesh reads, such as a Deployment or an HTTPRoute. It
// wraps ErrIgnored.
type UnreadError struct{ Problem object.Problem }

// Error implements error.
func (e *UnreadError) Error() string { return e.Problem.Error() }

// Unwrap makes it an ErrIgnored.
func (e *UnreadError) Unwrap() error { return ErrIgnored }

// runsPods are the kinds that `fairlead up`, or a cluster, makes Pods of.
var runsPods = map[string][]string{
	"apps":  {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"},
	"batch": {"Job", "CronJob"},
}

// RunsPods tells the kinds that describe Pods to be run: of them the mesh reads the Pods.
func RunsPods(group, kind string) bool { return slices.Contains(runsPods[group], kind) }

// unread is the error for an object whose kind is not in the table.
func unread(key object.Key, apiVersion string, doc *manifest.Document) error {
	// Whether an unknown kind lives in namespaces is not known either.
	meta, _ := doc.Tree["metadata"].(map[string]any)
	key.Namespace, _ = meta["namespace"].(string)
	remedy := "remove it; Fairlead reads Istio's kinds and the Kubernetes kinds that describe the mesh"
	if meant := meantKind(key); meant != "" {
		remedy = "did you mean " + meant + "?"
	}
	switch {
	case RunsPods(key.Group, key.Kind):
		remedy = "`fairlead up -f` or a cluster runs what it describes; the mesh reads Pods"
	case key.Group == "gateway.networking.k8s.io" || key.Group == "networking.k8s.io" && key.Kind == "Ingress":
		remedy = "write a Gateway and a VirtualService of " + Canonical(GroupNetworking, "Gateway")
	}
	return &UnreadError{object.Problem{
		Location: doc.Location(), Object: key.String(), Field: "kind", Value: apiVersion + " " + key.Kind, Reason: "nobody reads this kind", Remedy: remedy,
	}}
}

// meantKind guesses which known kind an unknown one stands for, as "v1 Service"; empty if none is near.
func meantKind(key object.Key) string {
	name := nearest.Name(key.Kind, KindNames())
	if name == "" {
		return ""
	}
	return Canonical(GroupsOf(name)[0], name) + " " + name
}

// mistakenGroup tells a kind that is known, in a group that can only be a mistake: none, or one that is nearly written
// like the kind's own. A kind of this name in any other group is somebody else's.
func mistakenGroup(key object.Key) bool {
	groups := GroupsOf(key.Kind)
	if len(groups) == 0 || slices.Contains(groups, key.Group) {
		return false
	}
	return key.Group == "" || nearest.Name(key.Group, groups) != ""
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
