package kube

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

// withheldFor is how long a source withholds at least.
const withheldFor = 30 * time.Second

// shopServices applies Services shop/NAME-0 and so on, each with an endpoint, and shop itself.
func shopServices(t *testing.T, s *kubeapi.Server, name string, n int) {
	t.Helper()
	var all strings.Builder
	all.WriteString("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n")
	for i := range n {
		fmt.Fprintf(&all, `---
{apiVersion: v1, kind: Service, metadata: {name: %[1]s-%[2]d, namespace: shop}, spec: {clusterIP: None, ports: [{name: http, port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-%[2]d, namespace: shop, labels: {kubernetes.io/service-name: %[1]s-%[2]d}}
addressType: IPv4
endpoints: [{addresses: [10.3.%[3]d.%[2]d]}]
ports: [{name: http, port: 80}]
`, name, i, len(name))
	}
	s.Apply(t, all.String())
}

// withheld returns how many objects of each kind a source withholds.
func (w *watcher) withheld(name string) map[string]int {
	w.t.Helper()
	_, body, err := w.get("/readyz/sources")
	testkit.NoError(w.t, err)
	var all []struct {
		Name     string `json:"name"`
		Withheld []struct {
			What    string `json:"what"`
			Objects int    `json:"objects"`
		} `json:"withheld"`
	}
	testkit.NoError(w.t, json.Unmarshal([]byte(body), &all))
	out := map[string]int{}
	for _, s := range all {
		if s.Name == name {
			for _, held := range s.Withheld {
				out[held.What] = held.Objects
			}
		}
	}
	return out
}

// withholds waits until a source withholds so many objects of a kind.
func (w *watcher) withholds(name, kind string, n int) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() error {
		if held := w.withheld(name); held[kind] != n {
			return fmt.Errorf("%s withholds %v, want %d of %s", name, held, n, kind)
		}
		return nil
	})
}

// services lists the Services of a namespace, sorted.
func (v *view) services(namespace string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := []string{}
	for k := range v.held {
		if name, ok := strings.CutPrefix(k, "Service "+namespace+"/"); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// until waits for a number of Services of a namespace.
func (v *view) until(namespace string, n int) {
	v.t.Helper()
	testkit.Eventually(v.t, patience, func() error {
		if have := v.services(namespace); len(have) != n {
			return fmt.Errorf("%d services in %s, want %d: %v", len(have), namespace, n, have)
		}
		return nil
	})
}

// TestAnEmptiedAPIServerRemovesNothingAtOnce: a kubeconfig leads to another cluster, and etcd of a remote cluster and
// of the own one lose all they have. Nothing leaves the mesh, across a restart too, until a second list says the same,
// or an administrator; what is created meanwhile counts. What comes back with a backup was never gone.
func TestAnEmptiedAPIServerRemovesNothingAtOnce(t *testing.T) {
	own, east := kubeapi.Start(t, kubeapi.Options{}), kubeapi.Start(t, kubeapi.Options{})
	own.ApplyCRDs(t)
	var entries strings.Builder
	for i := range 12 {
		fmt.Fprintf(&entries, "---\n{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e-%d, namespace: shop},"+
			" spec: {hosts: [e-%[1]d.example], resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}]}}\n", i)
	}
	shopServices(t, own, "west", 15)
	own.Apply(t, entries.String())
	shopServices(t, east, "east", 15)
	own.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")
	remoteSecret(t, own, "istio-remote-secret-east", "east", string(testkit.Must(os.ReadFile(east.Kubeconfig))(t)))
	w := startWatcher(t, own.Kubeconfig, "--remote-cluster-allow-addresses", "127.0.0.0/8")
	w.remoteIs("east", "SYNCED", "")
	v := w.subscribe()
	v.until("shop", 42)

	// A kubeconfig that leads to another cluster, and back.
	rotate(t, own, "istio-remote-secret-east", "east", string(testkit.Must(os.ReadFile(own.Kubeconfig))(t)))
	w.withholds("kubernetes/east", "Service", 15)
	rotate(t, own, "istio-remote-secret-east", "east", string(testkit.Must(os.ReadFile(east.Kubeconfig))(t)))
	w.withholds("kubernetes/east", "Service", 0)
	if have := v.services("shop"); len(have) != 42 {
		t.Errorf("%d services are left: %v", len(have), have)
	}

	east.Restore(t, "")
	w.withholds("kubernetes/east", "Service", 15)
	began := time.Now()
	w.withholds("kubernetes/east", "EndpointSlice.discovery.k8s.io", 15)
	shopServices(t, east, "new", 2)
	v.until("shop", 44)
	if n := w.metric("source_withheld", `source="kubernetes/east"`); n < 30 {
		t.Errorf("the metric is %v", n)
	}
	v.until("shop", 29)
	if took := time.Since(began); took < withheldFor-patience/10 {
		t.Errorf("a second list has confirmed it after %s", took)
	}
	w.withholds("kubernetes/east", "Service", 0)

	// The own cluster's, with its CustomResourceDefinitions and east's Secret, and a restart meanwhile.
	backup := own.Backup(t)
	removed := v.removals()
	own.Restore(t, "")
	w.withholds(sourceName, "Service", 15)
	w.withholds(sourceName, "ServiceEntry.networking.istio.io", 12)
	w.withholds("remote-clusters", "Secret", 1)
	if n := v.removals() - removed; n != 0 || len(v.services("shop")) != 29 {
		t.Errorf("%d resources were removed: %v", n, v.services("shop"))
	}
	w.stop()
	w.start()
	w.ready()
	v = w.subscribe()
	w.withholds(sourceName, "Service", 15)
	w.withholds("remote-clusters", "Secret", 1)
	v.until("shop", 29)
	own.Restore(t, backup)
	w.withholds(sourceName, "Service", 0)
	w.withholds(sourceName, "ServiceEntry.networking.istio.io", 0)
	w.withholds("remote-clusters", "Secret", 0)
	w.remoteIs("east", "SYNCED", "")
	v.until("shop", 29)
	if n := v.removals(); n != 0 {
		t.Errorf("%d resources were removed", n)
	}

	// A user deletes east's Secret.
	remoteSecret(t, own, "istio-remote-secret-east", "east", "")
	v.until("shop", 27)

	// An administrator accepts it at once.
	own.Restore(t, "")
	w.withholds(sourceName, "Service", 15)
	w.withholds(sourceName, "EndpointSlice.discovery.k8s.io", 15)
	w.withholds(sourceName, "ServiceEntry.networking.istio.io", 12)
	began = time.Now()
	res, err := w.admin().AcceptSource(t.Context(), &configv1.AcceptSourceRequest{Name: sourceName})
	if err != nil || res.GetRemoved() < 42 {
		t.Errorf("accepted: %v, %v", res, err)
	}
	v.until("shop", 0)
	if took := time.Since(began); took > withheldFor/2 {
		t.Errorf("it took %s", took)
	}
}

// TestWhatAUserDeletesIsNotWithheld: a namespace with most of the services, while they are watched.
func TestWhatAUserDeletesIsNotWithheld(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{Controllers: []string{"namespace-controller"}})
	shopServices(t, s, "web", 50)
	w := startWatcher(t, s.Kubeconfig)
	v := w.subscribe()
	v.until("shop", 50)
	began := time.Now()
	testkit.NoError(t, s.Client(t).CoreV1().Namespaces().Delete(t.Context(), "shop", metav1.DeleteOptions{}))
	v.until("shop", 0)
	if took := time.Since(began); took >= withheldFor {
		t.Errorf("it took %s", took)
	}
	if held := w.withheld(sourceName); len(held) > 0 {
		t.Errorf("withheld: %v", held)
	}
}
