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
	// Cluster is the id of the remote cluster that the object is in; empty for the own cluster, files and the store.
	Cluster string
}

// groupGatewayAPI has a kind whose name another group of the mesh has too.
const groupGatewayAPI = "gateway.networking.k8s.io"

// KindName is the kind as a person names it: "VirtualService", and with its group where another kind has its name,
// "Gateway.gateway.networking.k8s.io"; the bare Gateway is Istio's.
func (k Key) KindName() string {
	if k.Group == groupGatewayAPI && k.Kind == "Gateway" {
		return k.Kind + "." + k.Group
	}
	return k.Kind
}

// String returns "VirtualService apps/server", or "Namespace apps" for a cluster-scoped kind; for an object of a remote
// cluster "Service apps/server of cluster east".
func (k Key) String() string {
	var b strings.Builder
	b.WriteString(k.KindName())
	b.WriteByte(' ')
	if k.Namespace != "" {
		b.WriteString(k.Namespace)
		b.WriteByte('/')
	}
	if k.Name == "" {
		b.WriteString(unnamed)
	} else {
		b.WriteString(k.Name)
	}
	if k.Cluster != "" {
		b.WriteString(" of cluster " + k.Cluster)
	}
	return b.String()
}

// unnamed stands for the name of an object without one.
const unnamed = "(unnamed)"

// ParseKey parses the text of Key.String, which has no group but where KindName has one.
func ParseKey(text string) (k Key, ok bool) {
	kind, name, ok := strings.Cut(text, " ")
	if !ok {
		return Key{}, false
	}
	k = Key{Name: name}
	k.Kind, k.Group, _ = strings.Cut(kind, ".")
	if namespace, rest, namespaced := strings.Cut(name, "/"); namespaced {
		k.Namespace, k.Name = namespace, rest
	}
	return k, true
}

// Named reports whether a parsed key names an object.
func (k Key) Named() bool { return k.Name != "" && k.Name != unnamed }

// Compare orders keys by kind, namespace, name, group and cluster.
func (k Key) Compare(o Key) int {
	return cmp.Or(
		strings.Compare(k.Kind, o.Kind),
		strings.Compare(k.Namespace, o.Namespace),
		strings.Compare(k.Name, o.Name),
		strings.Compare(k.Group, o.Group),
		strings.Compare(k.Cluster, o.Cluster),
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
	// UID tells an object from another one of its name; empty if the source has none, or does not keep it.
	UID string
	// Source is the name of the delivering source, set by the source.
	Source string
	// Location is "dir/mesh.yaml:12"; empty for an object that stands in no file.
	Location string
	// Body is the typed content: the Istio spec as a proto.Message, or a pointer to the Kubernetes type
	// (*corev1.Service, ...). For kinds with many or large objects it keeps only what the mesh reads: *Pod for a Pod,
	// *Node for a Node, *Ban for an IdentityBan, *Credential for a Secret or a ConfigMap that holds one, nil for any
	// other Secret and for any other ConfigMap except the mesh configuration's.
	Body any
	// Warnings name fields that are accepted and have no effect.
	Warnings Problems
	// Digest identifies content and location: equal digests mean that nothing changed.
	Digest [16]byte
	// Origin is the object that this one was made from: the oldest Ingress behind a generated Gateway or
	// VirtualService; nil for an object of a user.
	Origin *Object
	// Held marks the object that replaces a security object that cannot be used and has no known good version, see
	// hold.Hold. A held object without a namespace holds for the whole mesh.
	Held bool
	// Health is that of a WorkloadEntry which follows its proxy's, see package health, or its registry's; nil for all
	// others.
	Health *Health
	// Registered is what a registry says of the object; nil for an object of a user.
	Registered *Registered
	// ClusterSet is what exports and imports say of a Service; nil for other kinds, and while nobody reads these.
	ClusterSet *ClusterSet
}

// Health is what a workload's agent, or its registry, has told.
type Health struct {
	Well bool
	// Draining is true for a workload that is not well and keeps the connections that it has.
	Draining bool
	Message  string
	// Counts is true if a workload that is not well gets no traffic.
	Counts bool
}

// Place names the place of the object in a sentence.
func (o *Object) Place() string {
	if o.Location == "" {
		return "source " + o.Source
	}
	return o.Location
}

// CompareAge orders objects by Istio's rule "the oldest wins": creation time, then kind, namespace and name.
func CompareAge(a, b *Object) int {
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	return a.Key.Compare(b.Key)
}

// Precedence says why first wins over second by the rule of CompareAge. Objects of files have no creation time unless
// they state one.
func Precedence(first, second *Object) string {
	return PrecedenceAt(first.Created.Equal(second.Created))
}

// PrecedenceAt is Precedence for two objects that have been created at the same time, or not.
func PrecedenceAt(sameTime bool) string {
	if sameTime {
		return "comes first by name (neither is older)"
	}
	return "is older"
}

// Older reports whether a wins over b by Istio's rule "the oldest wins".
func Older(a, b *Object) bool { return CompareAge(a, b) < 0 }
