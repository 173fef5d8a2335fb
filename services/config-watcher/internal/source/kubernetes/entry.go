package kubernetes

import (
	"errors"
	"maps"
	"slices"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/hold"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// entry is what a reflector passes on of one object of the API server: the object as the mesh reads it, and the little
// that client-go reads. It is immutable.
type entry struct {
	name    types.NamespacedName
	version string
	// annotations are set for bookmarks only.
	annotations map[string]string
	// object is nil if the object was refused, or is another revision's.
	object *object.Object
	// problems say why the object was refused; hold replaces it then, if it is a security object.
	problems object.Problems
	hold     *hold.Hold
	// uid, apiVersion and generation name the refused version.
	uid, apiVersion string
	generation      int64
	// saved is the last good version of a refused object of a first list that an earlier run has saved, and lost why it
	// cannot be read.
	saved *object.Object
	lost  error
	// restored is true for an object that only an earlier run has read; savedAt is when it was saved.
	restored bool
	savedAt  time.Time
	// ending is true for an object that somebody has deleted and that is still there.
	ending bool
}

// GetObjectKind implements runtime.Object.
func (e *entry) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Nobody changes an entry.
func (e *entry) DeepCopyObject() runtime.Object { return e }

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (e *entry) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: e.name.Namespace, Name: e.name.Name, ResourceVersion: e.version, Annotations: e.annotations}
}

// bookmark is the entry of an event without an object.
func bookmark(m metav1.Object) *entry {
	return &entry{version: m.GetResourceVersion(), annotations: m.GetAnnotations()}
}

// convert makes the entry of an object that a client has decoded. It keeps as little of it as the mesh reads.
func (k *kind) convert(o runtime.Object) (*entry, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return nil, errors.New("the API server has sent no object")
	}
	e := &entry{name: types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}, version: m.GetResourceVersion(),
		ending: m.GetDeletionTimestamp() != nil}
	if k.foreign(m.GetLabels()) {
		return e, nil
	}
	uid := string(m.GetUID())
	var err error
	if u, generic := o.(*unstructured.Unstructured); generic {
		trim(u.Object)
		doc := &manifest.Document{Tree: u.Object}
		if e.object, err = validate.Served(doc); err != nil {
			if h := hold.Of(doc); len(h) > 0 {
				e.hold = &h[0] // the API server knows the kind
			}
		}
	} else {
		trimTyped(m)
		e.object, err = validate.Typed(k.desc.Group, k.desc.Name, m)
	}
	if err != nil {
		e.object = nil
		e.uid, e.apiVersion, e.generation = uid, o.GetObjectKind().GroupVersionKind().GroupVersion().String(), m.GetGeneration()
		if !errors.As(err, &e.problems) {
			e.problems = object.Problems{{Object: k.key(e.name).String(), Reason: err.Error()}}
		}
		return e, nil
	}
	if k.lane != laneEndpoints {
		e.object.UID = uid
	}
	e.object.Source, e.object.Key.Cluster = k.source, k.cluster
	return e, nil
}

// unchanged is the entry of an object of which nothing has changed that the mesh reads, which is most often its status:
// it needs not be decoded and judged again. nil for any other object, for one without a generation, and for those of
// Kubernetes' own kinds, of which the status is read.
func (s *Source) unchanged(k *kind, m *unstructured.Unstructured) *entry {
	if m.GetGeneration() == 0 || m.GetDeletionTimestamp() != nil {
		return nil
	}
	name := types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}
	s.mu.Lock()
	o := k.objects[name]
	s.mu.Unlock()
	if o == nil || o.Held || o.UID == "" || o.UID != string(m.GetUID()) || o.Generation != m.GetGeneration() {
		return nil
	}
	annotations := m.GetAnnotations()
	delete(annotations, lastApplied)
	if !maps.Equal(o.Labels, m.GetLabels()) || !maps.Equal(o.Annotations, annotations) {
		return nil
	}
	return &entry{name: name, version: m.GetResourceVersion(), object: o}
}

// foreign reports whether labels are those of an object that another revision of the control plane reads. As in Istio,
// an object without the label is everybody's, and a control plane without a revision reads all.
func (k *kind) foreign(labels map[string]string) bool {
	of, labelled := labels[contract.RevisionLabel]
	return k.desc.NewSpec != nil && k.revision != "" && labelled && of != k.revision
}

// lastApplied is kubectl's annotation that repeats the object.
const lastApplied = corev1.LastAppliedConfigAnnotation

// unreadMetadata are the parts of the metadata that nobody reads. They change with every write of the status.
var unreadMetadata = []string{"managedFields", "resourceVersion", "uid", "selfLink", "ownerReferences", "finalizers", "deletionTimestamp",
	"deletionGracePeriodSeconds", "generateName"}

// trim drops what nobody reads of an object, before it is decoded.
func trim(tree map[string]any) {
	delete(tree, "status")
	meta, _ := tree["metadata"].(map[string]any)
	for _, name := range unreadMetadata {
		delete(meta, name)
	}
	if annotations, ok := meta["annotations"].(map[string]any); ok {
		delete(annotations, lastApplied)
		if len(annotations) == 0 {
			delete(meta, "annotations")
		}
	}
}

// trimTyped is trim for an object of a Kubernetes kind. The deletion timestamp stays, because it is read of a Pod.
func trimTyped(m metav1.Object) {
	m.SetManagedFields(nil)
	m.SetResourceVersion("")
	m.SetUID("")
	m.SetSelfLink("")
	m.SetOwnerReferences(nil)
	m.SetFinalizers(nil)
	m.SetGenerateName("")
	annotations := m.GetAnnotations()
	switch o := m.(type) {
	case *corev1.Node:
		annotations = nil
	case *corev1.Pod:
		annotations = normalise.MeshAnnotations(annotations)
	case *discoveryv1.EndpointSlice:
		// Controllers write the time of the change into annotations.
		annotations = normalise.MeshAnnotations(annotations)
		compact(o)
	default:
		delete(annotations, lastApplied)
	}
	if len(annotations) == 0 {
		annotations = nil
	}
	m.SetAnnotations(annotations)
	if len(m.GetLabels()) == 0 {
		m.SetLabels(nil)
	}
}

// compact makes an EndpointSlice small, because a mesh has thousands: endpoints share the parts that are equal, and
// what the decoder has reserved for more of them is given back. It drops the parts that nobody reads.
func compact(s *discoveryv1.EndpointSlice) {
	s.Endpoints, s.Ports = slices.Clone(s.Endpoints), slices.Clone(s.Ports)
	condition := map[bool]*bool{true: new(true), false: new(false)}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		for _, c := range []**bool{&e.Conditions.Ready, &e.Conditions.Serving, &e.Conditions.Terminating} {
			if *c != nil {
				*c = condition[**c]
			}
		}
		for _, text := range []*string{e.NodeName, e.Zone} {
			if text != nil {
				*text = unique.Make(*text).Value()
			}
		}
		e.Hints, e.DeprecatedTopology = nil, nil
		if ref := e.TargetRef; ref != nil {
			ref.UID, ref.ResourceVersion = "", ""
		}
	}
}
