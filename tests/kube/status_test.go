package kube

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

const (
	// programmedWithin bounds the time from a change to the condition that every proxy has acknowledged it.
	programmedWithin = 5 * time.Second
	// leaseTime is statusLease of config-watcher.
	leaseTime  = 15 * time.Second
	webCluster = "outbound|80||web.shop.svc.cluster.local"
)

const statusShop = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}
---
{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: one, namespace: shop}, spec: {address: 10.9.0.1, serviceAccount: one}}
---
{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: two, namespace: shop}, spec: {address: 10.9.0.2, serviceAccount: two}}
`

func webRule(connections int) string {
	return fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: web, namespace: shop}, "+
		"spec: {host: web, trafficPolicy: {connectionPool: {tcp: {maxConnections: %d}}}}}", connections)
}

// TestStatusInKubernetes: the leader writes what proxies of all replicas have acknowledged and rejected; another
// replica takes over.
func TestStatusInKubernetes(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	s.ApplyCRDs(t)
	s.Apply(t, statusShop)
	leader, other := startReplicas(t, s)
	// The xds-server reports to the replica that does not write.
	address := startXDSServer(t, other).String()
	one, _ := connectProxy(t, other, address, "one", "10.9.0.1", nil), connectProxy(t, other, address, "two", "10.9.0.2", nil)
	testkit.Eventually(t, patience, func() error {
		if n := other.metric("proxies"); n != 2 {
			return fmt.Errorf("%v proxies", n)
		}
		return nil
	})
	statusHas(t, s, "workloadentries/two", "Programmed=True/Programmed 1: 2 of 2 proxies acknowledged") // the replicas know of each other

	t.Run("a change is programmed within 5 s for kubectl wait", func(t *testing.T) {
		for n := 1; n <= 5; n++ {
			s.Apply(t, webRule(n))
			took := kubectlWait(t, s, "Programmed", "destinationrules/web", programmedWithin)
			t.Logf("generation %d is programmed after %s", n, took.Round(time.Millisecond))
			want := fmt.Sprintf("generation %d, observed %d\nAccepted=True/Accepted %d: the DestinationRule is valid and part of the "+
				"mesh\nProgrammed=True/Programmed %d: 2 of 2 proxies acknowledged", n, n, n, n)
			if got := statusText(t, s, "destinationrules/web"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		}
	})
	t.Run("a rejection is there with the proxy's words", func(t *testing.T) {
		words := "Error adding/updating cluster(s) " + webCluster + ": no such thing"
		one.rejects(webCluster, words)
		s.Apply(t, webRule(6))
		took := statusHas(t, s, "destinationrules/web", "generation 6, observed 6",
			"Programmed=False/Rejected 6: 1 of 2 proxies acknowledged; rejected by shop/one: Cluster "+webCluster+": "+words)
		t.Logf("the rejection is written after %s", took.Round(time.Millisecond))
		one.rejects("", "")
		s.Apply(t, webRule(7))
		statusHas(t, s, "destinationrules/web", "generation 7, observed 7", "Programmed=True/Programmed 7: 2 of 2")
	})
	t.Run("an object that was never accepted says why", func(t *testing.T) {
		s.Apply(t, `{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: bad, namespace: shop}, spec: {hosts: [web], gateways: ["a/b/c/d"], http: [{route: [{destination: {host: web}}]}]}}`)
		statusHas(t, s, "virtualservices/bad", "generation 1, observed 1", "Accepted=False/Invalid 1: spec.gateways[0]",
			"No earlier version is known", "Programmed=False/Invalid 1")
	})
	t.Run("the last good version of another stays, and that is said", func(t *testing.T) {
		s.Apply(t, strings.Replace(webRule(8), "host: web,", "host: 'a b',", 1))
		statusHas(t, s, "destinationrules/web", "generation 8, observed 8", "Accepted=False/Invalid 8: spec.host",
			"The last good version stays in force")
		s.Apply(t, webRule(9))
		kubectlWait(t, s, "Programmed", "destinationrules/web", programmedWithin)
	})
	t.Run("what is found about an object is in its status", func(t *testing.T) {
		s.Apply(t, `{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: lost, namespace: shop}, spec: {hosts: [web], http: [{route: [{destination: {host: nowhere}}]}]}}`)
		statusHas(t, s, "virtualservices/lost",
			"Accepted=True/Accepted 1: the VirtualService is valid and part of the mesh; spec.http[0].route[0].destination.host", "[HostNotFound]")
	})
	t.Run("every replica tells the same", func(t *testing.T) {
		for _, w := range []*watcher{leader, other} {
			testkit.Eventually(t, patience, func() error {
				res, err := w.admin().Status(t.Context(), &configv1.StatusRequest{Kind: "DestinationRule", Namespace: "shop", Name: "web"})
				if err != nil {
					return err
				}
				if len(res.GetObjects()) != 1 || res.GetObjects()[0].GetConditions()[1].GetMessage() != "2 of 2 proxies acknowledged" ||
					res.GetObjects()[0].GetSource() != sourceName {
					return fmt.Errorf("%v", res.GetObjects())
				}
				return nil
			})
		}
	})
	t.Run("nothing is written that is there already", func(t *testing.T) {
		client, err := dynamic.NewForConfig(s.Config)
		if err != nil {
			t.Fatal(err)
		}
		version := func() string {
			t.Helper()
			o, err := client.Resource(schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1",
				Resource: "destinationrules"}).Namespace("shop").Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return o.GetResourceVersion()
		}
		before := version()
		connectProxy(t, other, address, "one", "10.9.0.1", nil)
		s.Apply(t, strings.Replace(webRule(1), "name: web", "name: later", 1))
		kubectlWait(t, s, "Programmed", "destinationrules/later", patience)
		if after := version(); after != before {
			t.Errorf("the object has version %s, had %s", after, before)
		}
	})
	t.Run("another replica takes over within the lease time", func(t *testing.T) {
		// Both replicas look at the lease once every retry.
		limit := leaseTime + leaseTime*2/15*2 + programmedWithin
		leader.process.Kill()
		began := time.Now()
		s.Apply(t, webRule(10))
		testkit.Eventually(t, patience, func() error {
			if other.metric("status_leader") != 1 {
				return fmt.Errorf("nobody leads")
			}
			return nil
		})
		t.Logf("the second replica leads %s after the first was killed", time.Since(began).Round(time.Millisecond))
		kubectlWait(t, s, "Programmed", "destinationrules/web", patience)
		took := time.Since(began)
		t.Logf("a change is programmed %s after the leader was killed", took.Round(time.Millisecond))
		if took > limit {
			t.Errorf("want %s or less", limit)
		}
	})
}

// TestStatusOfEveryKind: each kind of Istio's has conditions, in the API version that the server has.
func TestStatusOfEveryKind(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	m := newMesh(t, s)
	s.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")
	m.apply(0, "first")
	kubeconfig := s.User(t, "config-watcher")
	s.Grant(t, account, rules(t, "")...)
	w := startWatcher(t, kubeconfig)
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	kinds := 0
	for _, one := range m.all {
		if !strings.HasSuffix(one.resource.Group, ".istio.io") {
			continue
		}
		kinds++
		want := []string{"generation 1, observed 1", "Accepted=True/Accepted 1"}
		if one.kind == "Telemetry" {
			want = []string{"Accepted=True/Accepted 1: the Telemetry is valid and part of the mesh; spec: has no effect"}
		}
		testkit.Eventually(t, patience, func() error {
			got := statusOf(t, client, one.resource, appsNamespace, one.name(0))
			for _, line := range want {
				if !strings.Contains(got, line) {
					return fmt.Errorf("%s: no %q in\n%s", one.kind, line, got)
				}
			}
			return nil
		})
	}
	if kinds < 14 {
		t.Errorf("only %d kinds", kinds)
	}
	if n := w.metric("status_unwritten"); n != 0 {
		t.Errorf("%v statuses are not written: the rights of deploy/ do not suffice", n)
	}

	t.Run("without the right to write it stays ready and says so", func(t *testing.T) {
		s.Grant(t, account, rules(t, "destinationrules/status")...)
		attempt := 0
		testkit.Eventually(t, patience, func() error {
			attempt++ // rights go a moment later
			s.Apply(t, fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: denied-%d, namespace: apps}, "+
				"spec: {host: a.example}}", attempt))
			if n := w.metric("status_unwritten", sourceName); n < 1 {
				return fmt.Errorf("%v statuses are not written", n)
			}
			return nil
		})
		code, _, err := w.get("/readyz")
		if err != nil || code != http.StatusOK {
			t.Errorf("/readyz: %d, %v", code, err)
		}
		_, body, err := w.get("/readyz/sources")
		if err != nil || !strings.Contains(body, `"status_unwritten"`) {
			t.Errorf("/readyz/sources: %s, %v", body, err)
		}
		res, err := w.admin().Status(t.Context(), &configv1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		told := ""
		for _, src := range res.GetSources() {
			told += src.GetStatusUnwritten()
		}
		if !strings.Contains(told, "DestinationRule apps/denied-") ||
			!strings.Contains(told, "allow config-watcher's service account to get destinationrules.networking.istio.io and to patch their status") {
			t.Errorf("the administrator is told %q", told)
		}
	})
	t.Run("without the right to the lease, too", func(t *testing.T) {
		s.Grant(t, account, rules(t, "leases")...)
		w.stop()
		w.start()
		w.ready()
		testkit.Eventually(t, patience, func() error {
			_, body, err := w.get("/readyz/sources")
			if err == nil && !strings.Contains(body, `"status_unwritten"`) {
				err = fmt.Errorf("/readyz/sources: %s", body)
			}
			return err
		})
	})
}
