package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

// The endpoints of a cluster that is away for longer than --remote-cluster-stale-after come last, for clients of other
// clusters, also at once after a restart, and come back to their place with the cluster.
func TestARemoteClusterThatIsAwayForLongComesLast(t *testing.T) {
	own, east := twoClusters(t)
	remoteSecret(t, own, "istio-remote-secret-east", "east", reader(t, east, "reader"))
	w := newWatcher(t, own.Kubeconfig, "--remote-cluster-allow-addresses", "127.0.0.0/8", "--remote-cluster-stale-after", "3s")
	w.start()
	w.ready()
	w.remoteIs("east", "SYNCED", "")
	xds := startXDSServer(t, w).String()
	here := followEndpoints(t, w, xds, clusterID, "cart-0", "cart", cartCluster)
	there := followEndpoints(t, w, xds, "east", "cart-0", "cart", cartCluster)
	here.become("two clusters", ownCart, eastCart)
	there.become("two clusters, from the other", ownCart, eastCart)
	for _, e := range []*endpointsSeen{here, there} {
		e.neverMisses(ownCart)
	}

	east.Kill()
	w.remoteIs("east", "AWAY", "its endpoints are used last")
	here.become("away for long", ownCart, eastCart+" last")
	there.stay(time.Second, ownCart, eastCart)

	// All is restarted: the first revision knows it.
	w.stop()
	w.start()
	w.ready()
	sets := w.subscribe()
	const set = "EndpointSet shop/" + cartHost + ":80/east"
	sets.has(set, nil)
	if r := sets.get(set); !r.GetEndpointSet().GetAway() {
		t.Errorf("after a restart the first revision has %v", r)
	}
	here.become("after a restart", ownCart, eastCart+" last")

	east.Resume(t)
	w.remoteIs("east", "SYNCED", "")
	sets.has(set, func(r *configv1.Resource) bool { return !r.GetEndpointSet().GetAway() })
	here.become("back", ownCart, eastCart)
	there.become("back, from the other cluster", ownCart, eastCart)

	// Given up while it is away: nothing of it is left, and a new one of the id is as any other.
	east.Kill()
	here.become("away again", ownCart, eastCart+" last")
	remoteSecret(t, own, "istio-remote-secret-east", "", "")
	here.become("given up", ownCart)
	east.Resume(t)
	remoteSecret(t, own, "istio-remote-secret-east", "east", reader(t, east, "reader"))
	here.become("named again", ownCart, eastCart)
}

// 200 rotations of a Secret while endpoints change: none of those that stay is missing in an answer.
func TestRotationsLoseNoEndpoint(t *testing.T) {
	own, east := twoClusters(t)
	kubeconfigs := []string{reader(t, east, "reader"), reader(t, east, "reader-2")}
	remoteSecret(t, own, "istio-remote-secret-east", "east", kubeconfigs[0])
	w := startWatcher(t, own.Kubeconfig, "--remote-cluster-allow-addresses", "127.0.0.0/8")
	here := followEndpoints(t, w, startXDSServer(t, w).String(), clusterID, "cart-0", "cart", cartCluster)
	here.become("two clusters", ownCart, eastCart)
	here.neverMisses(ownCart, eastCart)

	more := func(i int) string { return fmt.Sprintf("10.2.2.%d", 1+i%200) }
	slice := func(s *kubeapi.Server, i int) {
		s.Apply(t, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-2, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
endpoints: [{addresses: [%s], nodeName: n1}]
ports: [{name: http, port: 8080}]
`, more(i)))
	}
	for i := range 200 {
		slice(east, i)
		rotate(t, own, "istio-remote-secret-east", "east", kubeconfigs[(i+1)%2])
	}
	w.remoteIs("east", "SYNCED", "")
	here.become("after the last rotation", ownCart, eastCart, more(199)+":8080 east-1")
	// The connection in use is the last one.
	east.Grant(t, kubeapi.ServiceAccountSubject(meshNamespace, "reader-2"))
	testkit.NoError(t, east.Client(t).DiscoveryV1().EndpointSlices("shop").Delete(t.Context(), "cart-2", metav1.DeleteOptions{}))
	here.become("followed after the last rotation", ownCart, eastCart)
	if text := here.now(); strings.Contains(text, "last") {
		t.Errorf("endpoints %s", text)
	}
}
