package mesh

import (
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

// EndpointSetKey is the key of the endpoints of one port of a service in one cluster.
func EndpointSetKey(svc *configv1.Service, set *configv1.EndpointSet) Key {
	return Key{KindEndpointSet, svc.GetNamespace(), contract.EndpointSetName(set)}
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

// Sees reports whether clients in a cluster see the endpoints of a set: a cluster that does not export a service keeps
// its endpoints to itself. "" stands for clients of which nobody knows the cluster, in a mesh where it does not matter.
func Sees(cluster string, set *configv1.EndpointSet) bool {
	return !set.GetClusterOnly() || set.GetCluster() == cluster || cluster == ""
}

// EndpointsTopic names the answer of Endpoints.
func EndpointsTopic(hostname string, port uint32) Topic {
	return Topic{SubjectEndpoints, hostname, number(port)}
}
