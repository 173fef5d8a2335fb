package validate

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Typed checks an object of a Kubernetes kind that a client has decoded, and returns the same as Document for its
// manifest, except for the digest. A field that this version does not know is no mistake here, because a newer API
// server may send it. The result keeps body; the caller must not change it and sets the result's Source.
func Typed(group, name string, body metav1.Object) (*object.Object, error) {
	k := kinds.Find(group, name)
	if k == nil || k.NewBody == nil {
		return nil, fmt.Errorf("%s %s is no kind of Kubernetes that the mesh reads", group, name)
	}
	o := &object.Object{
		Key: object.Key{Group: group, Kind: name, Namespace: body.GetNamespace(), Name: body.GetName()}, APIVersion: k.Canonical(),
		Labels: body.GetLabels(), Annotations: body.GetAnnotations(), Created: body.GetCreationTimestamp().Time, Generation: body.GetGeneration(),
		Body: body,
	}
	c := &checker{object: o.Key.String(), namespace: o.Key.Namespace}
	c.run(o)
	if err := c.problems.Err(); err != nil {
		return nil, err
	}
	o.Body, o.Warnings = kept(o), c.warnings
	digest, err := digestOf(o)
	if err != nil {
		return nil, object.Problems{{Object: o.Key.String(), Reason: "cannot be encoded: " + err.Error(),
			Remedy: "report this object as a defect of Fairlead"}}
	}
	o.Digest = digest
	return o, nil
}

// digestOf hashes what an object keeps, so that a change of another part of the original object changes nothing. The
// encoding of a Secret is "(redacted)", its version stands for its content.
func digestOf(o *object.Object) ([16]byte, error) {
	version := ""
	if c, ok := o.Body.(*object.Credential); ok {
		version = c.Version()
	}
	h := sha256.New()
	for _, part := range []any{o.Key, o.APIVersion, o.Labels, o.Annotations, o.Created.Unix(), o.Generation, version} {
		if err := json.NewEncoder(h).Encode(part); err != nil {
			return [16]byte{}, err
		}
	}
	if m, ok := o.Body.(interface{ Marshal() ([]byte, error) }); ok {
		js, err := m.Marshal() // Kubernetes' types write maps in the order of their keys
		if err != nil {
			return [16]byte{}, err
		}
		h.Write(js)
	} else if err := json.NewEncoder(h).Encode(o.Body); err != nil {
		return [16]byte{}, err
	}
	return [16]byte(h.Sum(nil)[:16]), nil
}

// HoldUnread is the hold for a source that cannot read any PeerAuthentication and knows no earlier state of them. place
// names the source. It holds for the whole mesh.
func HoldUnread(place string) Hold { return hold("", "", place, nil) }

// HoldsUnread reports whether HoldUnread stands for the objects of a kind that cannot be read.
func HoldsUnread(group, name string) bool {
	return group == kinds.GroupSecurity && name == peerAuthentication
}
