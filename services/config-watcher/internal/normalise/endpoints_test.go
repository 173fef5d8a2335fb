package normalise

import (
	"testing"

	"fairlead.dev/services/config-watcher/internal/resource"
)

// Kubernetes copies region and zone of the node into the labels of each Pod, but not the subzone.
func TestPodsOfAClusterHaveTheSubzoneOfTheirNode(t *testing.T) {
	copied := ", topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z"
	s := newState(t, service("a", "")+pod("a-1", "a", "10.1.0.1", true, copied))
	if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:8080 r/z/ v1" {
		t.Errorf("without the Node: %s", got)
	}
	s.apply("apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z, " +
		"topology.istio.io/subzone: s}}\n")
	if got := s.endpoints("apps", fqdnA+":80/Kubernetes"); got != "10.1.0.1:8080 r/z/s v1" {
		t.Errorf("with the Node: %s", got)
	}
	if got := s.held[resource.Key{Kind: "Workload", Namespace: "apps", Name: "a-1"}].GetWorkload().GetLocality().GetSubzone(); got != "s" {
		t.Errorf("subzone %q of the Workload", got)
	}
}

func TestOfSeveralEndpointsWithOneAddress(t *testing.T) {
	const entry = "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: a-0, namespace: apps}\nspec: {address: " +
		"10.1.0.1, labels: {app: a, version: entry}, ports: {http: 8080}}\n"
	mutual := ", security.istio.io/tlsMode: istio"
	slice := func(name, pod, ready string) string {
		return "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: " + name +
			", namespace: apps, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{name: http, port: 8080}]\n" +
			"endpoints: [{addresses: [10.1.0.1], conditions: {ready: " + ready + "}, targetRef: {kind: Pod, name: " + pod + "}}]\n"
	}
	for name, c := range map[string]struct{ objects, want string }{
		"the Pod counts, not a WorkloadEntry beside it": {pod("a-1", "a", "10.1.0.1", true, mutual) + entry,
			"10.1.0.1:8080 istio v1"},
		"a Pod that is not ready is not made so by a WorkloadEntry": {pod("a-1", "a", "10.1.0.1", false, mutual) + entry,
			"10.1.0.1:8080 NOT_READY istio v1"},
		"the ready one of two Pods counts": {pod("a-1", "a", "10.1.0.1", false, "") +
			pod("a-2", "a", "10.1.0.1", true, mutual), "10.1.0.1:8080 istio v1"},
		"the ready one of two slices counts": {
			pod("a-1", "a", "10.1.0.1", false, "") + pod("a-2", "a", "10.1.0.1", true, mutual) + slice("one", "a-1", "false") +
				slice("two", "a-2", "true"), "10.1.0.1:8080 istio v1",
		},
	} {
		if got := newState(t, service("a", "")+c.objects).endpoints("apps", fqdnA+":80/Kubernetes"); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
