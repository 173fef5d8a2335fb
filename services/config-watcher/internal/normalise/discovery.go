package normalise

import (
	"maps"

	"google.golang.org/protobuf/proto"
	mesh "istio.io/api/mesh/v1alpha1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// namespaceNameLabel is on every namespace of a cluster, whether an object of a file says so or not.
const namespaceNameLabel = "kubernetes.io/metadata.name"

// discovery is MeshConfig.discoverySelectors: which namespaces the mesh sees. What is in the others is kept aside, and takes part once its
// namespace is selected.
type discovery struct {
	// selectors are alternatives; none select everything.
	selectors []labels.Selector
	aside     map[object.Key]*object.Object
	// stale is true if another set of namespaces is selected than the last time that things were put aside.
	stale bool
}

func selectorsOf(settings *mesh.MeshConfig) ([]labels.Selector, error) {
	var out []labels.Selector
	for _, s := range settings.GetDiscoverySelectors() {
		selector, err := validate.LabelSelector(s)
		if err != nil {
			return nil, err
		}
		out = append(out, selector)
	}
	return out, nil
}

// discovered reports whether the mesh sees a namespace. It always sees its own: the root namespace and the one of its configuration.
func (m *Mesh) discovered(namespace string) bool {
	if len(m.discovery.selectors) == 0 || namespace == "" || namespace == m.settings.GetRootNamespace() || namespace == validate.MeshNamespace {
		return true
	}
	set := labels.Set{namespaceNameLabel: namespace}
	if o := m.namespaces[namespace]; o != nil {
		maps.Copy(set, o.Labels)
	}
	for _, s := range m.discovery.selectors {
		if s.Matches(set) {
			return true
		}
	}
	return false
}

// rediscover takes in what has come into sight, and puts aside what has gone out of it.
func (m *Mesh) rediscover() {
	if !m.discovery.stale {
		return
	}
	m.discovery.stale = false
	shown := map[string]bool{}
	sees := func(namespace string) bool {
		known, ok := shown[namespace]
		if !ok {
			known = m.discovered(namespace)
			shown[namespace] = known
		}
		return known
	}
	for k, o := range m.discovery.aside {
		if sees(k.Namespace) {
			delete(m.discovery.aside, k)
			m.takeNamespaced(k, o)
		}
	}
	if len(m.discovery.selectors) == 0 {
		return
	}
	var hidden []*object.Object
	hide := func(o *object.Object) {
		if o != nil && !sees(o.Key.Namespace) {
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
		hide(o)
	}
	for _, o := range m.configs {
		hide(o)
	}
	for _, o := range hidden {
		m.takeNamespaced(o.Key, nil)
		m.discovery.aside[o.Key] = o
	}
}

// rediscoverBy follows a change of the mesh's settings.
func (m *Mesh) rediscoverBy(before *mesh.MeshConfig) error {
	same := before.GetRootNamespace() == m.settings.GetRootNamespace() &&
		proto.Equal(&mesh.MeshConfig{DiscoverySelectors: before.GetDiscoverySelectors()}, &mesh.MeshConfig{DiscoverySelectors: m.settings.GetDiscoverySelectors()})
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
