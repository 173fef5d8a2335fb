package normalise

import (
	"maps"

	networkingv1beta1 "istio.io/api/networking/v1beta1"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/ondemand"
)

// workloadAnnotations are the annotations of a Workload resource. If a ProxyConfig decides about on-demand
// configuration, workloadAnnotations writes its value into the annotation that a user could set on the workload.
func (m *Mesh) workloadAnnotations(in *instance) map[string]string {
	out := MeshAnnotations(in.object.Annotations)
	if _, own := out[object.OnDemandAnnotation]; own {
		return out
	}
	value := m.onDemand(in)
	if value == "" {
		return out
	}
	out = maps.Clone(out)
	if out == nil {
		out = map[string]string{}
	}
	out[object.OnDemandAnnotation] = value
	return out
}

// onDemand returns the value of the first that has one, in Istio's order for ProxyConfigs: the ProxyConfig that selects
// the workload, the workload's annotation, the namespace's ProxyConfig, the mesh's. Of several of one rank the oldest
// wins.
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
		return onDemandVariable(selecting)
	}
	if value := ondemand.Of(in.object.Annotations); value != "" {
		return value
	}
	if namespace != nil {
		return onDemandVariable(namespace)
	}
	return onDemandVariable(root)
}

// touchProxyConfig updates onDemandConfigs and marks the workloads that the old or the new ProxyConfig applies to.
func (m *Mesh) touchProxyConfig(k object.Key, o *object.Object) {
	for _, o := range []*object.Object{m.configs[k], o} {
		if onDemandVariable(o) == "" {
			continue
		}
		selector := proxyConfigOf(o).GetSelector().GetMatchLabels()
		if len(selector) > 0 {
			m.instances.everywhere(k.Namespace, selector, m.touchWorkload)
			continue
		}
		for _, in := range m.instances.byKey {
			if in.key.namespace == k.Namespace || k.Namespace == m.settings.GetRootNamespace() {
				m.touchWorkload(in)
			}
		}
	}
	if onDemandVariable(o) != "" {
		m.onDemandConfigs.add(k)
	} else {
		delete(m.onDemandConfigs, k)
	}
}

func (m *Mesh) touchWorkload(in *instance) {
	m.dirty.workloads.add(in.key.workload())
}

func onDemandVariable(o *object.Object) string {
	return proxyConfigOf(o).GetEnvironmentVariables()[object.OnDemandMetadata]
}

// proxyConfigOf returns the ProxyConfig of an object; nil, whose getters may be called, if it has none.
func proxyConfigOf(o *object.Object) *networkingv1beta1.ProxyConfig {
	if o == nil {
		return nil
	}
	p, _ := o.Body.(*networkingv1beta1.ProxyConfig)
	return p
}
