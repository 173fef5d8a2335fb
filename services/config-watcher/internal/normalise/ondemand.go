package normalise

import (
	"maps"

	networkingv1beta1 "istio.io/api/networking/v1beta1"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// workloadAnnotations are the annotations that mean something to the mesh. Where ProxyConfigs decide whether the workload's sidecar holds only
// what it calls, the result stands in the annotation that says so itself.
func (m *Mesh) workloadAnnotations(in *instance) map[string]string {
	out := meaningful(in.object.Annotations)
	if _, own := out[validate.OnDemandAnnotation]; own {
		return out
	}
	said := m.onDemand(in)
	if said == "" {
		return out
	}
	out = maps.Clone(out)
	if out == nil {
		out = map[string]string{}
	}
	out[validate.OnDemandAnnotation] = said
	return out
}

// onDemand asks the ProxyConfigs in the order in which Istio lets them win: the one that selects the workload, the workload's annotation, the
// namespace's, the mesh's. Within each, the oldest that says something wins.
func (m *Mesh) onDemand(in *instance) string {
	var selecting, namespace, root *object.Object
	older := func(best **object.Object, o *object.Object) {
		if *best == nil || object.Older(o, *best) {
			*best = o
		}
	}
	for k := range m.onDemandConfigs {
		o := m.configs[k]
		selector := proxyConfigOf(o).GetSelector().GetMatchLabels()
		switch {
		case k.Namespace == in.key.namespace && len(selector) > 0:
			if matches(selector, in.labels) {
				older(&selecting, o)
			}
		case len(selector) > 0:
		case k.Namespace == m.settings.GetRootNamespace():
			older(&root, o)
		case k.Namespace == in.key.namespace:
			older(&namespace, o)
		}
	}
	if selecting != nil {
		return saidOnDemand(selecting)
	}
	if said := validate.OnDemandOf(in.object.Annotations); said != "" {
		return said
	}
	if namespace != nil {
		return saidOnDemand(namespace)
	}
	return saidOnDemand(root)
}

// touchProxyConfig follows the ProxyConfigs that say something of onDemand, and marks the workloads that one of them may reach.
func (m *Mesh) touchProxyConfig(k object.Key, o *object.Object) {
	for _, o := range []*object.Object{m.configs[k], o} {
		if saidOnDemand(o) == "" {
			continue
		}
		selector := proxyConfigOf(o).GetSelector().GetMatchLabels()
		if len(selector) > 0 {
			m.instances.matching(k.Namespace, selector, m.touchWorkload)
			continue
		}
		for _, in := range m.instances.byKey {
			if in.key.namespace == k.Namespace || k.Namespace == m.settings.GetRootNamespace() {
				m.touchWorkload(in)
			}
		}
	}
	if saidOnDemand(o) != "" {
		m.onDemandConfigs.add(k)
	} else {
		delete(m.onDemandConfigs, k)
	}
}

func (m *Mesh) touchWorkload(in *instance) {
	m.dirty.workloads.add(workKey{in.key.namespace, in.key.name})
}

func saidOnDemand(o *object.Object) string {
	return proxyConfigOf(o).GetEnvironmentVariables()[validate.OnDemandMetadata]
}

// proxyConfigOf is nil, and may be asked all the same, where o is none.
func proxyConfigOf(o *object.Object) *networkingv1beta1.ProxyConfig {
	if o == nil {
		return nil
	}
	p, _ := o.Body.(*networkingv1beta1.ProxyConfig)
	return p
}
