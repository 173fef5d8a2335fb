package normalise

import (
	"cmp"
	"maps"
	"slices"

	"fairlead.dev/services/config-watcher/internal/normalise/networks"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

var namespaceKind = &rules[object.Object]{
	is:    traits{first: true, meshWide: true},
	index: (*Mesh).indexNamespace,
	build: func(_ *Mesh, o *object.Object) (proto.Message, error) {
		return &configv1.Namespace{Name: o.Key.Name, Labels: o.Labels}, nil
	},
}

// place is a namespace of a cluster, which is empty for the own one.
type place struct{ namespace, cluster string }

// indexNamespace marks what the labels of a namespace decide: whether the mesh discovers it, and the network of its
// cluster.
func (m *Mesh) indexNamespace(old, now *object.Object) {
	if cmp.Or(now, old).Key.Cluster == "" {
		m.judge(old, now)
	}
	name, before, after := cmp.Or(now, old).Key.Name, labelsOf(old), labelsOf(now)
	m.rediscover = m.rediscover || m.selected(name, before) != m.selected(name, after)
	if name == kinds.MeshNamespace && before[networks.Label] != after[networks.Label] {
		m.touchAll()
	}
}

func (m *Mesh) namespaceLabels(at place) map[string]string {
	return labelsOf(m.stored[object.Key{Kind: "Namespace", Name: at.namespace, Cluster: at.cluster}].object)
}

// labelsOf are the labels of an object, which may be nil.
func labelsOf(o *object.Object) map[string]string {
	if o == nil {
		return nil
	}
	return o.Labels
}

// namespaceNameLabel is a label of every namespace of a cluster, so it is matched even if the Namespace object of a
// file lacks it.
const namespaceNameLabel = "kubernetes.io/metadata.name"

// discovered reports whether the mesh discovers a namespace, by the labels that it has in its cluster.
func (m *Mesh) discovered(at place) bool {
	return len(m.settings.discovery) == 0 || m.selected(at.namespace, m.namespaceLabels(at))
}

// selected reports whether MeshConfig.discoverySelectors select a namespace with these labels. The mesh always
// discovers the root namespace and the one of the mesh configuration.
func (m *Mesh) selected(namespace string, own map[string]string) bool {
	if len(m.settings.discovery) == 0 || namespace == "" || namespace == m.settings.GetRootNamespace() ||
		namespace == kinds.MeshNamespace {
		return true
	}
	set := labels.Set{namespaceNameLabel: namespace}
	maps.Copy(set, own)
	return slices.ContainsFunc(m.settings.discovery, func(s labels.Selector) bool { return s.Matches(set) })
}

// showAndHide takes over hidden objects whose namespace is now discovered, and hides objects whose namespace no longer
// is. Apply calls it once the namespaces and settings of a change set are known.
func (m *Mesh) showAndHide() {
	if !m.rediscover {
		return
	}
	m.rediscover = false
	known := map[place]bool{}
	discovered := func(k object.Key) bool {
		at := place{k.Namespace, k.Cluster}
		if _, ok := known[at]; !ok {
			known[at] = m.discovered(at)
		}
		return known[at]
	}
	for k, o := range m.hidden {
		if discovered(k) {
			delete(m.hidden, k)
			m.show(m.kindOf(k), Change{k, o})
		}
	}
	var hide []*object.Object
	for k, e := range m.stored {
		if e.object.Origin == nil && !discovered(k) {
			hide = append(hide, e.object)
		}
	}
	for _, o := range hide {
		m.show(m.kindOf(o.Key), Change{Key: o.Key})
		m.hidden[o.Key] = o
	}
}
