package normalise

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	mesh "istio.io/api/mesh/v1alpha1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

// namespaceNameLabel is a label of every namespace of a cluster, so it is matched even if the Namespace object of a
// file lacks it.
const namespaceNameLabel = "kubernetes.io/metadata.name"

// discovery is MeshConfig.discoverySelectors: which namespaces the mesh discovers. Objects of other namespaces wait in
// hidden until their namespace is selected.
type discovery struct {
	// selectors are alternatives; no selector selects every namespace.
	selectors []labels.Selector
	hidden    map[object.Key]*object.Object
	// stale is true if the set of selected namespaces may have changed since the last rediscover.
	stale bool
}

func selectorsOf(settings *mesh.MeshConfig) ([]labels.Selector, error) {
	var out []labels.Selector
	for _, s := range settings.GetDiscoverySelectors() {
		selector, err := meshconfig.LabelSelector(s)
		if err != nil {
			return nil, err
		}
		out = append(out, selector)
	}
	return out, nil
}

// discovered reports whether the mesh discovers a namespace, by the labels that it has in its cluster. It always
// discovers the root namespace and the one of the mesh configuration.
func (m *Mesh) discovered(at place) bool {
	namespace := at.namespace
	if len(m.discovery.selectors) == 0 || namespace == "" || namespace == m.settings.GetRootNamespace() ||
		namespace == kinds.MeshNamespace {
		return true
	}
	set := labels.Set{namespaceNameLabel: namespace}
	if o := m.namespaces[at]; o != nil {
		maps.Copy(set, o.Labels)
	}
	return slices.ContainsFunc(m.discovery.selectors, func(s labels.Selector) bool { return s.Matches(set) })
}

// rediscover takes over hidden objects whose namespace is now selected, and hides objects whose namespace no longer is.
// Apply calls it once per change set, after namespaces and settings.
func (m *Mesh) rediscover() {
	if !m.discovery.stale {
		return
	}
	m.discovery.stale = false
	shown := map[place]bool{}
	discovered := func(k object.Key) bool {
		at := place{k.Namespace, k.Cluster}
		known, ok := shown[at]
		if !ok {
			known = m.discovered(at)
			shown[at] = known
		}
		return known
	}
	for k, o := range m.discovery.hidden {
		if discovered(k) {
			delete(m.discovery.hidden, k)
			m.updateNamespaced(k, o)
		}
	}
	if len(m.discovery.selectors) == 0 {
		return
	}
	var hidden []*object.Object
	hide := func(o *object.Object) {
		if o != nil && !discovered(o.Key) {
			hidden = append(hidden, o)
		}
	}
	for _, o := range m.owners {
		hide(o)
	}
	for _, in := range m.instances.byKey {
		hide(in.object)
	}
	for _, o := range m.slices {
		if o.Key.Kind == "EndpointSlice" {
			hide(o)
		}
	}
	for _, o := range m.mirrored {
		hide(o)
	}
	for _, o := range m.configs {
		if o.Origin == nil {
			hide(o)
		}
	}
	for _, o := range m.ingresses.all {
		hide(o)
	}
	for _, o := range hidden {
		m.updateNamespaced(o.Key, nil)
		m.discovery.hidden[o.Key] = o
	}
}

// updateDiscovery compiles the discoverySelectors after a change of the mesh configuration.
func (m *Mesh) updateDiscovery(before *mesh.MeshConfig) error {
	same := before.GetRootNamespace() == m.settings.GetRootNamespace() &&
		proto.Equal(&mesh.MeshConfig{DiscoverySelectors: before.GetDiscoverySelectors()},
			&mesh.MeshConfig{DiscoverySelectors: m.settings.GetDiscoverySelectors()})
	if same {
		return nil
	}
	selectors, err := selectorsOf(m.settings)
	if err != nil {
		return err
	}
	m.discovery.selectors, m.discovery.stale = selectors, true
	return nil
}
