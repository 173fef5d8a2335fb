package validate

import (
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// UnreadError says that an object is of a kind that the mesh does not read, such as a Deployment. It
// wraps ErrIgnored.
type UnreadError struct{ Problem object.Problem }

// Error implements error.
func (e *UnreadError) Error() string { return e.Problem.Error() }

// Unwrap returns ErrIgnored.
func (e *UnreadError) Unwrap() error { return ErrIgnored }

// unread is the error for an object whose kind is not in the table.
func unread(key object.Key, apiVersion string, doc *manifest.Document) error {
	// An unknown kind may be cluster-scoped: no default namespace.
	meta, _ := doc.Tree["metadata"].(map[string]any)
	key.Namespace, _ = meta["namespace"].(string)
	reason := "nobody reads this kind"
	remedy := "remove it; Fairlead reads Istio's kinds, the Gateway API's and the Kubernetes kinds that describe the mesh"
	if meant := kinds.Similar(key.Kind); meant != "" {
		remedy = "did you mean " + meant + "?"
	}
	if kinds.RunsPods(key.Group, key.Kind) {
		reason, remedy = "the mesh reads Pods, not this kind", "`fairlead up -f` or a cluster runs what it describes"
	}
	return &UnreadError{object.Problem{
		Location: doc.Location(), Object: key.String(), Field: "kind", Value: apiVersion + " " + key.Kind, Reason: reason, Remedy: remedy,
	}}
}
