package normalise

import (
	"cmp"
	"iter"

	discoveryv1 "k8s.io/api/discovery/v1"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/config-watcher/internal/normalise/mirror"
	"fairlead.dev/services/config-watcher/internal/normalise/sets"
	"fairlead.dev/services/config-watcher/internal/object"
)

var endpointSliceKind = sliceRules(func(o *object.Object) []*slice {
	service := namespacedName{o.Key.Namespace, o.Labels[labelServiceName], o.Key.Cluster}
	return []*slice{{body: o.Body.(*discoveryv1.EndpointSlice), service: service}}
})

// slice is an EndpointSlice, or a part of an Endpoints object in this form.
type slice struct {
	body *discoveryv1.EndpointSlice
	// service has the slice's namespace and cluster.
	service namespacedName
	// host is that of the service.
	host hostKey
}

func sliceRules(decode func(*object.Object) []*slice) *rules[[]*slice] {
	return &rules[[]*slice]{
		decode: func(m *Mesh, o *object.Object) (*[]*slice, error) {
			list := decode(o)
			for _, s := range list {
				s.host = hostKey{Namespace: s.service.namespace, Hostname: Host(s.service.name, s.service.namespace, m.cfg.Domain)}
			}
			return &list, nil
		},
		index: func(m *Mesh, old, now *[]*slice) { m.slices.replace(old, now) },
		touch: (*Mesh).touchSlices,
	}
}

// touchSlices marks the endpoints of the slices' Service, and the Workloads of their Pods whose ServiceTargets come
// from them, because the Service has no selector.
func (m *Mesh) touchSlices(list *[]*slice) {
	for _, s := range *list {
		m.touchSlice(s)
		if svc := m.service(s.service); svc != nil && len(svc.selector) > 0 {
			continue
		}
		for pod := range s.pods {
			m.dirty.workloads.Add(pod)
		}
	}
}

// touchSlice marks the endpoints of the hosts of the slice's Service.
func (m *Mesh) touchSlice(s *slice) {
	m.dirty.endpoints.Add(s.host)
	if svc := m.service(s.service); svc != nil {
		for _, h := range svc.hosts {
			m.dirty.endpoints.Add(h)
		}
	}
}

// pods calls yield for every Pod that the slice names.
func (s *slice) pods(yield func(namespacedName) bool) {
	for _, e := range s.body.Endpoints {
		if pod, ok := s.pod(&e); ok && !yield(pod) {
			return
		}
	}
}

// pod is the Pod that an endpoint refers to.
func (s *slice) pod(e *discoveryv1.Endpoint) (pod namespacedName, ok bool) {
	if e.TargetRef == nil || e.TargetRef.Kind != kindPod {
		return namespacedName{}, false
	}
	return namespacedName{cmp.Or(e.TargetRef.Namespace, s.service.namespace), e.TargetRef.Name, s.service.cluster}, true
}

// sliceIndex finds slices by the Service that they belong to, and by the Pods that they name.
type sliceIndex struct {
	ofService, ofPod sets.Multimap[namespacedName, *slice]
}

func newSliceIndex() sliceIndex {
	return sliceIndex{sets.Multimap[namespacedName, *slice]{}, sets.Multimap[namespacedName, *slice]{}}
}

func (x sliceIndex) replace(old, now *[]*slice) {
	if old != nil {
		for _, s := range *old {
			x.ofService.Remove(s.service, s)
			for pod := range s.pods {
				x.ofPod.Remove(pod, s)
			}
		}
	}
	if now != nil {
		for _, s := range *now {
			x.ofService.Add(s.service, s)
			for pod := range s.pods {
				x.ofPod.Add(pod, s)
			}
		}
	}
}

// of lists the slices that name an instance.
func (x sliceIndex) of(in *instance) iter.Seq[*slice] {
	if !in.isPod() {
		return func(func(*slice) bool) {}
	}
	return x.ofPod[nameOf(in.key)].All
}

// As Kubernetes mirrors it, each address family of each subset of an Endpoints object becomes an EndpointSlice of the
// Service with the object's name.
var endpointsKind = sliceRules(func(o *object.Object) []*slice {
	return lists.Map(mirror.SlicesOf(o.Body.(*object.Endpoints)), func(s *discoveryv1.EndpointSlice) *slice {
		return &slice{body: s, service: nameOf(o.Key)}
	})
})
