package normalise

import (
	"cmp"

	discoveryv1 "k8s.io/api/discovery/v1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// updateSlice takes over an EndpointSlice. It marks the endpoints of the slice's Service and the Pods that it names.
func (m *Mesh) updateSlice(k namespacedName, o *object.Object) {
	m.touchSlice(k)
	if old := m.slices[k]; old != nil {
		m.bySlice.remove(m.sliceOf[k], k)
		for _, pod := range slicePods(old) {
			m.sliceRefs.remove(pod, k)
			m.touchSliceTarget(m.sliceOf[k], pod)
		}
		delete(m.sliceOf, k)
		delete(m.slices, k)
	}
	if o == nil {
		return
	}
	m.slices[k] = o
	svc := namespacedName{k.namespace, o.Labels[labelServiceName], k.cluster}
	m.sliceOf[k] = svc
	m.bySlice.add(svc, k)
	for _, pod := range slicePods(o) {
		m.sliceRefs.add(pod, k)
		m.touchSliceTarget(svc, pod)
	}
	m.touchSlice(k)
}

// touchSliceTarget marks the Workload of a Pod whose ServiceTargets come from an EndpointSlice, that is, if its Service
// has no selector.
func (m *Mesh) touchSliceTarget(svc namespacedName, pod instKey) {
	o := owner{"Service", svc.namespace, svc.name, svc.cluster}
	if len(ownerSelector(o, m.owners[o])) == 0 {
		m.dirty.workloads.add(pod.workload())
	}
}

func (m *Mesh) touchSlice(slice namespacedName) {
	svc, ok := m.sliceOf[slice]
	if !ok {
		return
	}
	m.dirty.endpoints.add(hostKey{svc.namespace, Host(svc.name, svc.namespace, m.cfg.Domain)})
}

func (m *Mesh) eachSlicePod(svc namespacedName, f func(instKey)) {
	for k := range m.bySlice[svc].all {
		for _, pod := range slicePods(m.slices[k]) {
			f(pod)
		}
	}
}

func slicePods(o *object.Object) []instKey {
	var out []instKey
	for _, e := range o.Body.(*discoveryv1.EndpointSlice).Endpoints {
		if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
			out = append(out, instKey{"Pod", cmp.Or(e.TargetRef.Namespace, o.Key.Namespace), e.TargetRef.Name, o.Key.Cluster})
		}
	}
	return out
}
