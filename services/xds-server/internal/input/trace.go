package input

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/credential"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// Origin is an object of the mesh that a build has read.
type Origin struct {
	Key mesh.Key
	// Source is the user's object; nil if only the mesh's own object is known.
	Source *configv1.SourceRef
}

// Trace collects the objects that a build reads, for debug pages that explain a resource. A nil Trace collects nothing.
type Trace struct {
	origins map[mesh.Key]*configv1.SourceRef
}

// Origins lists what was read, sorted by kind, namespace and name.
func (t *Trace) Origins() []Origin {
	var out []Origin
	for key, source := range t.origins {
		out = append(out, Origin{key, source})
	}
	slices.SortFunc(out, func(a, b Origin) int {
		return cmp.Or(cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return out
}

// TracedReader returns a reader for a class at a snapshot, and the trace of what it will read. It has a view of its
// own.
func TracedReader(key *class.Key, state *mesh.Snapshot) (*Reader, *Trace) {
	t := &Trace{origins: map[mesh.Key]*configv1.SourceRef{}}
	r := NewView(key, state).Reader()
	r.trace = t
	return r, t
}

// Topics lists, sorted, the topics that the reader has recorded; those of derived answers are replaced by the topics
// that the answers depend on.
func (r *Reader) Topics() []mesh.Topic {
	all := mesh.Topics{}
	var add func(topics mesh.Topics)
	add = func(topics mesh.Topics) {
		for t := range topics {
			if t.Subject < mesh.SubjectDerived {
				all.Add(t)
			} else if a, ok := r.view.answers[t]; ok {
				add(a.deps)
			}
		}
	}
	add(r.deps)
	return slices.SortedFunc(maps.Keys(all), func(a, b mesh.Topic) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.A, b.A), cmp.Compare(a.B, b.B))
	})
}

func (t *Trace) credential(ref credential.Ref) {
	t.add(mesh.Key{Kind: kindSecret, Namespace: cmp.Or(ref.Namespace, credential.NamespaceOf(ref.Identity)), Name: ref.Name}, nil)
}

func (t *Trace) add(key mesh.Key, source *configv1.SourceRef) {
	if t != nil {
		t.origins[key] = source
	}
}

func (t *Trace) mesh(state *mesh.Snapshot) {
	if t != nil && state.MeshSource() != nil {
		t.add(mesh.Key{Kind: mesh.KindMeshConfig}, state.MeshSource())
	}
}

func (t *Trace) service(svc *configv1.Service) {
	if t != nil && svc != nil {
		t.add(mesh.ServiceKey(svc), svc.GetSource())
	}
}

func (t *Trace) endpoints(svc *configv1.Service, sets []*configv1.EndpointSet) {
	if t == nil {
		return
	}
	for _, set := range sets {
		t.add(mesh.EndpointSetKey(svc, set), nil)
	}
}

func traceOne[T proto.Message](t *Trace, c *mesh.Config[T]) {
	if t != nil && c != nil {
		t.add(c.Key, c.Source)
	}
}

func traceAll[T proto.Message](t *Trace, list []*mesh.Config[T]) {
	for _, c := range list {
		traceOne(t, c)
	}
}
