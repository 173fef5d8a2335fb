package normalise

import (
	networkingv1beta1 "istio.io/api/networking/v1beta1"

	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/ondemand"
)

var proxyConfigKind = &rules[object.Object]{
	index: func(m *Mesh, old, now *object.Object) {
		if onDemandVariable(old) != "" {
			delete(m.onDemandConfigs, old.Key)
		}
		if onDemandVariable(now) != "" {
			m.onDemandConfigs.Add(now.Key)
		}
	},
	touch: (*Mesh).touchProxyConfig,
	build: istioConfig((*Mesh).plain),
}

// touchProxyConfig marks the workloads that a ProxyConfig with the on-demand variable applies to.
func (m *Mesh) touchProxyConfig(o *object.Object) {
	selector := proxyConfigOf(o).GetSelector().GetMatchLabels()
	switch {
	case onDemandVariable(o) == "":
	case len(selector) > 0:
		m.instances.everywhere(o.Key.Namespace, selector, m.touchWorkload)
	case o.Key.Namespace == m.settings.GetRootNamespace():
		for _, e := range m.stored {
			if in, ok := e.value.(*instance); ok {
				m.touchWorkload(in)
			}
		}
	default:
		m.instances.everywhere(o.Key.Namespace, allWorkloads, m.touchWorkload)
	}
}

// workloadAnnotations are the annotations of a Workload resource. If a ProxyConfig decides about on-demand
// configuration, workloadAnnotations writes its value into the annotation that a user could set on the workload.
func (m *Mesh) workloadAnnotations(in *instance) map[string]string {
	out := MeshAnnotations(in.object.Annotations)
	if _, own := out[object.OnDemandAnnotation]; own {
		return out
	}
	if value := m.onDemand(in); value != "" {
		return merged(out, map[string]string{object.OnDemandAnnotation: value})
	}
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
		o := m.stored[k].object
		selector := proxyConfigOf(o).GetSelector().GetMatchLabels()
		switch {
		case k.Namespace == in.key.Namespace && len(selector) > 0:
			if matches(selector, in.labels) {
				older(&selecting, o)
			}
		case len(selector) > 0:
		case k.Namespace == m.settings.GetRootNamespace():
			older(&root, o)
		case k.Namespace == in.key.Namespace:
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
