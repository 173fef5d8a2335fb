// Package object holds one user's object after decoding: the currency between sources, the aggregate and the normaliser.
package object

import (
	"cmp"
	"strings"
	"time"
)

// Key names an object across sources. The API version is no part of it: an object read as v1beta1 and as v1 is the same object.
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

// Object is one decoded and validated object. It is immutable once a source has delivered it.
type Object struct {
	Key         Key
	APIVersion  string
	Labels      map[string]string
	Annotations map[string]string
	// Created decides between conflicting objects; zero sorts first (a file without creationTimestamp).
	Created time.Time
	// Generation counts changes of the spec; 0 where the source keeps none.
	Generation int64
	// Source is the name of the delivering source, set by the source.
	Source string
	// Location is "dir/mesh.yaml:12", empty where there is no file.
	Location string
	// Body is the typed content: the Istio spec as a proto.Message, or a pointer to the Kubernetes type (*corev1.Service, ...). Of kinds whose
	// objects are many or large only what the mesh reads is kept: *Pod for a Pod, *Credential for a Secret or ConfigMap that holds one, nothing for
	// any other Secret, or ConfigMap that is not the mesh's.
	Body any
	// Warnings are of what is accepted and has no effect.
	Warnings Problems
	// Digest identifies content and location: equal digests mean that nothing changed.
	Digest [16]byte
	// Held marks what stands in for a security object that cannot be used and of which no good version is known, see
	// validate.Hold. A held object without a namespace holds for the whole mesh.
	Held bool
}

// Older reports whether a wins over b where Istio says "the oldest wins": creation time, then namespace and name.
func Older(a, b *Object) bool {
	if !a.Created.Equal(b.Created) {
		return a.Created.Before(b.Created)
	}
	return a.Key.Compare(b.Key) < 0
}
