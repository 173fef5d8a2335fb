// Package object holds one object of a user's configuration after decoding: its key, its typed body and the problems
// found in it. Package validate makes objects, sources deliver them, package aggregate merges the sources, and packages
// normalise and analyze read them. Object, Key, Problem and Credential are its types.
package object

import (
	"cmp"
	"strings"
	"time"
)

// Key names an object across sources. It leaves out the API version: v1beta1 and v1 of an object are the same object.
type Key struct {
	Group     string
	Kind      string
	Namespace string
	Name      string
}

// String returns "VirtualService apps/server", or "Namespace apps" for a cluster-scoped kind.
func (k Key) String() string {
	var b strings.Builder
	b.WriteString(k.Kind)
	b.WriteByte(' ')
	if k.Namespace != "" {
		b.WriteString(k.Namespace)
		b.WriteByte('/')
	}
	if k.Name == "" {
		b.WriteString("(unnamed)")
	} else {
		b.WriteString(k.Name)
	}
	return b.String()
}

// Compare orders keys by kind, namespace, name and group.
func (k Key) Compare(o Key) int {
	return cmp.Or(
		strings.Compare(k.Kind, o.Kind),
		strings.Compare(k.Namespace, o.Namespace),
		strings.Compare(k.Name, o.Name),
		strings.Compare(k.Group, o.Group),
	)
}

// Object is one decoded and validated object. It is immutable after a source has delivered it.
type Object struct {
	Key         Key
	APIVersion  string
	Labels      map[string]string
	Annotations map[string]string
	// Created orders conflicting objects: the oldest wins. Zero, of a file without creationTimestamp, sorts first.
	Created time.Time
	// Generation counts changes of the spec; 0 if the source does not count them.
	Generation int64
	// Source is the name of the delivering source, set by the source.
	Source string
	// Location is "dir/mesh.yaml:12"; empty for an object that stands in no file.
	Location string
	// Body is the typed content: the Istio spec as a proto.Message, or a pointer to the Kubernetes type
	// (*corev1.Service, ...). For kinds with many or large objects it keeps only what the mesh reads: *Pod for a Pod,
	// *Ban for an IdentityBan, *Credential for a Secret or a ConfigMap that holds one, nil for any other Secret and for
	// any other ConfigMap except the mesh configuration's.
	Body any
	// Warnings name fields that are accepted and have no effect.
	Warnings Problems
	// Digest identifies content and location: equal digests mean that nothing changed.
	Digest [16]byte
	// Held marks the object that replaces a security object that cannot be used and has no known good version, see
	// validate.Hold. A held object without a namespace holds for the whole mesh.
	Held bool
}

// CompareAge orders objects by Istio's rule "the oldest wins": creation time, then kind, namespace and name.
func CompareAge(a, b *Object) int {
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	return a.Key.Compare(b.Key)
}

// Older reports whether a wins over b by Istio's rule "the oldest wins".
func Older(a, b *Object) bool { return CompareAge(a, b) < 0 }
