package mesh

import (
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// EndpointSetKey is the key of the endpoints of one port of a service in one cluster.
func EndpointSetKey(svc *configv1.Service, set *configv1.EndpointSet) Key {
	name := set.GetHostname() + ":" + number(set.GetPort()) + "/" + set.GetCluster()
	return Key{KindEndpointSet, svc.GetNamespace(), visibilityName(name, set.GetAudience())}
}

func (w *writer) indexEndpoints(e *entry, v *configv1.EndpointSet, add bool) {
	port := number(v.GetPort())
	put(w, &w.next.endpoints, add, join(v.GetHostname(), port, e.key.Namespace, v.GetAudience(), v.GetCluster()), v)
	w.touch(SubjectEndpoints, v.GetHostname(), port)
	svc, ok := w.next.services.get(join(v.GetHostname(), e.key.Namespace, v.GetAudience()))
	if ok && svc.GetHeadless() {
		w.indexPodAddresses(svc, v, add)
	}
}

// Endpoints lists the endpoints of one port of a service, a set for each cluster.
func (s *Snapshot) Endpoints(svc *configv1.Service, port uint32) []*configv1.EndpointSet {
	return s.endpoints.list(join(svc.GetHostname(), number(port), svc.GetNamespace(), svc.GetAudience()) + sep)
}

// EndpointsTopic names the answer of Endpoints.
func EndpointsTopic(hostname string, port uint32) Topic {
	return Topic{SubjectEndpoints, hostname, number(port)}
}
