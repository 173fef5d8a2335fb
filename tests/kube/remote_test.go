package kube

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

// clusterShop is a cluster of a network and region with Service shop/cart, whose VIP is given, and one Pod of it,
// cart-0, on node n1. The kubelet and the controllers are missing: podReady writes what they would.
const clusterShop = `
{apiVersion: v1, kind: Namespace, metadata: {name: istio-system, labels: {topology.istio.io/network: %[1]s}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/region: %[2]s, topology.kubernetes.io/zone: z}}}
---
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {clusterIP: %[3]s, selector: {app: cart}, ports: [{name: http, port: 80, targetPort: 8080}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: cart-0, namespace: shop, labels: {app: cart, security.istio.io/tlsMode: istio}},
 spec: {serviceAccountName: cart, nodeName: n1, containers: [{name: app, image: app}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
endpoints: [{addresses: [%[4]s], nodeName: n1, targetRef: {kind: Pod, name: cart-0, namespace: shop}}]
ports: [{name: http, port: 8080}]
`

const (
	cartHost    = "cart.shop.svc.cluster.local"
	cartCluster = "outbound|80||" + cartHost
	ownCart     = "10.1.1.1:8080 west-1"
	eastCart    = "10.2.1.1:8080 east-1"
)

// tokens finds the token of a kubeconfig.
var tokens = regexp.MustCompile(`token: .*`)

// twoClusters starts the own cluster and a remote one, "east", in a network of its own, and what runs in them.
func twoClusters(t *testing.T) (own, east *kubeapi.Server) {
	t.Helper()
	own, east = kubeapi.Start(t, kubeapi.Options{}), kubeapi.Start(t, kubeapi.Options{})
	own.Apply(t, fmt.Sprintf(clusterShop, "n1", "west-1", "198.19.0.20", "10.1.1.1"))
	east.Apply(t, fmt.Sprintf(clusterShop, "n2", "east-1", "198.19.0.30", "10.2.1.1"))
	podReady(t, own.Client(t), "shop", "cart-0", "10.1.1.1")
	podReady(t, east.Client(t), "shop", "cart-0", "10.2.1.1")
	return own, east
}

// A remote cluster from its Secret on: seen by proxies of both clusters, away, with rotated and with bad credentials,
// gone.
func TestARemoteCluster(t *testing.T) {
	own, east := twoClusters(t)
	kubeconfig := reader(t, east, "reader")
	w := startWatcher(t, own.Kubeconfig, "--remote-cluster-allow-addresses", "127.0.0.0/8")
	xds := startXDSServer(t, w).String()
	v := w.subscribe()
	here := followEndpoints(t, w, xds, clusterID, "cart-0", "cart", cartCluster)
	here.become("one cluster", ownCart)

	remoteSecret(t, own, "istio-remote-secret-east", "east", kubeconfig)
	w.remoteIs("east", "SYNCED", "")
	here.become("two clusters", ownCart, eastCart)
	there := followEndpoints(t, w, xds, "east", "cart-0", "cart", cartCluster)
	there.become("from the other cluster", ownCart, eastCart)
	v.has("Service shop/"+cartHost, func(r *configv1.Resource) bool {
		return fmt.Sprint(r.GetService().GetClusterAddresses()) == fmt.Sprint([]*configv1.ClusterAddresses{
			{Cluster: clusterID, Addresses: []string{"198.19.0.20"}}, {Cluster: "east", Addresses: []string{"198.19.0.30"}},
		})
	})
	v.has("Workload shop/cart-0/east", func(r *configv1.Resource) bool {
		return r.GetWorkload().GetCluster() == "east" && r.GetWorkload().GetNetwork() == "n2"
	})

	// Two networks: the endpoints of the other one are behind its gateway.
	gateway := "{apiVersion: v1, kind: Service, metadata: {name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: " +
		"%s}}," +
		" spec: {externalIPs: [%s], ports: [{name: tls, port: 15443}]}}"
	own.Apply(t, fmt.Sprintf(gateway, "n1", "203.0.113.1"))
	east.Apply(t, fmt.Sprintf(gateway, "n2", "203.0.113.2"))
	here.become("through the other network's gateway", ownCart, "203.0.113.2:15443 east-1")
	there.become("through the first network's gateway", eastCart, "203.0.113.1:15443 west-1")
	for _, s := range []*kubeapi.Server{own, east} {
		if err := s.Client(t).CoreV1().Services(meshNamespace).Delete(t.Context(), "eastwest", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	here.become("gateways gone", ownCart, eastCart)

	// Local to each cluster.
	settings := "{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: 'serviceSettings: " +
		"[{settings: {clusterLocal: %t}, hosts: [\"*.shop.svc.cluster.local\"]}]'}}"
	own.Apply(t, fmt.Sprintf(settings, true))
	here.become("cluster-local", ownCart)
	there.become("cluster-local, from the other cluster", eastCart)
	own.Apply(t, fmt.Sprintf(settings, false))
	here.become("not cluster-local", ownCart, eastCart)

	// Away for a while.
	east.Kill()
	w.remoteIs("east", "AWAY", "cannot be reached")
	if n := w.metric("remote_clusters", `state="away"`); n != 1 {
		t.Errorf("%v clusters counted as away", n)
	}
	if n := w.metric("source_degraded", `source="kubernetes/east"`); n != 1 {
		t.Errorf("the source's metric is %v", n)
	}
	here.stay(2*time.Second, ownCart, eastCart)
	east.Resume(t)
	w.remoteIs("east", "SYNCED", "")
	east.Apply(t, strings.ReplaceAll(fmt.Sprintf(clusterShop, "n2", "east-1", "198.19.0.30", "10.2.1.2"),
		"targetRef: {kind: Pod, name: cart-0, namespace: shop}", ""))
	here.become("changed after its return", ownCart, "10.2.1.2:8080 east-1")

	// A bad kubeconfig is refused, and the cluster is followed with the one before.
	bad := tokens.ReplaceAllString(kubeconfig,
		"exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/true, interactiveMode: Never}")
	if bad == kubeconfig {
		t.Fatalf("no token in %s", kubeconfig)
	}
	rotate(t, own, "istio-remote-secret-east", "east", bad)
	w.remoteIs("east", "REFUSED", ".user.exec: ")
	east.Apply(t, strings.ReplaceAll(fmt.Sprintf(clusterShop, "n2", "east-1", "198.19.0.30", "10.2.1.3"),
		"targetRef: {kind: Pod, name: cart-0, namespace: shop}", ""))
	here.become("changed while a kubeconfig is refused", ownCart, "10.2.1.3:8080 east-1")

	// Rotated: the old account loses its rights, and no endpoint is missed.
	rotate(t, own, "istio-remote-secret-east", "east", reader(t, east, "reader-2"))
	w.remoteIs("east", "SYNCED", "")
	east.Grant(t, kubeapi.ServiceAccountSubject(meshNamespace, "reader"))
	here.stay(time.Second, ownCart, "10.2.1.3:8080 east-1")
	east.Apply(t, strings.ReplaceAll(fmt.Sprintf(clusterShop, "n2", "east-1", "198.19.0.30", "10.2.1.4"),
		"targetRef: {kind: Pod, name: cart-0, namespace: shop}", ""))
	here.become("changed after the rotation", ownCart, "10.2.1.4:8080 east-1")
	// Credentials that the API server does not take: what was known last stays.
	rotate(t, own, "istio-remote-secret-east", "east", tokens.ReplaceAllString(kubeconfig, "token: expired"))
	w.remoteIs("east", "AWAY", "Unauthorized")
	here.stay(time.Second, ownCart, "10.2.1.4:8080 east-1")

	// Removed with everything.
	remoteSecret(t, own, "istio-remote-secret-east", "", "")
	here.become("removed", ownCart)
	v.lacks("Workload shop/cart-0/east")
	v.has("Service shop/"+cartHost, func(r *configv1.Resource) bool { return len(r.GetService().GetClusterAddresses()) == 0 })
}

// A remote cluster that does not answer neither holds up the start nor loses its endpoints at a restart.
func TestARemoteClusterThatIsAwayAtTheStart(t *testing.T) {
	own, east := twoClusters(t)
	kubeconfig := reader(t, east, "reader")
	remoteSecret(t, own, "istio-remote-secret-east", "east", kubeconfig)
	east.Kill()
	w := newWatcher(t, own.Kubeconfig, "--remote-cluster-allow-addresses", "127.0.0.0/8", "--remote-cluster-timeout", "2s")
	w.start()
	w.ready()
	w.remoteIs("east", "TIMEOUT", "cannot be reached")
	own1 := w.subscribe()
	own1.has("EndpointSet shop/"+cartHost+":80/"+clusterID, nil)
	if own1.get("EndpointSet shop/"+cartHost+":80/east") != nil {
		t.Error("endpoints of a cluster that was never read")
	}
	east.Resume(t)
	w.remoteIs("east", "SYNCED", "")
	own1.has("EndpointSet shop/"+cartHost+":80/east", nil)
	// With the state of the last run the endpoints are there at once.
	w.stop()
	east.Kill()
	w.start()
	w.ready()
	w.remoteIs("east", "AWAY", "cannot be reached")
	w.subscribe().has("EndpointSet shop/"+cartHost+":80/east", nil)
	// The Secret is removed while nobody looks: so are the endpoints.
	w.stop()
	remoteSecret(t, own, "istio-remote-secret-east", "", "")
	w.start()
	w.ready()
	last := w.subscribe()
	last.has("EndpointSet shop/"+cartHost+":80/"+clusterID, nil)
	last.lacks("EndpointSet shop/" + cartHost + ":80/east")
	east.Resume(t)
}

// What a remote Secret must not make config-watcher do, against the real API server; the table of all fields is in
// package remote.
func TestHostileRemoteSecrets(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	s.Apply(t, fmt.Sprintf(clusterShop, "n1", "west-1", "198.19.0.20", "10.1.1.1"))
	w := startWatcher(t, s.Kubeconfig)
	remoteSecret(t, s, "loop", "loop", reader(t, s, "reader"))
	w.remoteIs("loop", "REFUSED", "(loopback)")
	remoteSecret(t, s, "own", clusterID, reader(t, s, "reader"))
	w.remoteIs(clusterID, "IGNORED", "own cluster")
	remoteSecret(t, s, "younger", "loop", "nothing")
	w.remoteIs("loop", "IGNORED", "istio-system/loop names the same cluster")
	remoteSecret(t, s, "file", "file",
		"apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: 'https://203.0.113.1', "+
			"certificate-authority: /etc/passwd}}]\n"+
			"users: [{name: a, user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}}]\ncontexts: [{name: a, context: {cluster: "+
			"a, user: a}}]\n")
	c := w.remoteIs("file", "REFUSED", "tokenFile")
	if !strings.Contains(c.GetMessage(), "certificate-authority: names a file") || c.GetSecret() != "istio-system/file" {
		t.Errorf("told %v", c)
	}
	state := w.until("remote problems", func(sourceState) bool { return true })
	if !state.Synced {
		t.Error("the own cluster is not read")
	}
	res, err := w.admin().Status(t.Context(), &configv1.StatusRequest{Kind: "Secret"})
	if err != nil || len(res.GetFindings()) != 5 {
		t.Errorf("findings %v, %v", res.GetFindings(), err)
	}
}
