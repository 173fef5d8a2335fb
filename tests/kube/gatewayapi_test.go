package kube

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

const edgeShop = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: keys}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}
---
apiVersion: v1
kind: Service
metadata: {name: edge-istio, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: edge}}
spec: {type: LoadBalancer, ports: [{name: http, port: 80}], selector: {gateway.networking.k8s.io/gateway-name: edge}}
`

// edge is a Gateway with a plain listener and one whose certificate is in another namespace.
const edge = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: wildcard, namespace: keys}]}}
`

func httpRoute(name, gateway, service string) string {
	return fmt.Sprintf("{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: %s, namespace: shop}, spec: "+
		"{parentRefs: [{name: %s}], rules: [{backendRefs: [{name: %s, port: 80}]}]}}\n---\n", name, gateway, service)
}

const secretGrant = "{apiVersion: gateway.networking.k8s.io/v1beta1, kind: ReferenceGrant, metadata: {name: edge, namespace: keys}, " +
	"spec: {from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop}], to: [{group: '', kind: Secret}]}}"

// gatewayFeatures is the number of features that a class claims: all 58 of the Gateway API v1.6.3 but the 10 of meshes.
const gatewayFeatures = 48

// TestGatewayAPIStatus: the leader writes statuses of the Gateway API's shapes, from what the API server has and what
// connected gateways have acknowledged.
func TestGatewayAPIStatus(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	a := newAPI(t, s)
	whole := t // what a part starts and later ones need

	t.Run("without the definitions nothing is missing", func(t *testing.T) {
		if n := a.watcher.metric("status_unwritten"); n != 0 {
			t.Errorf("%v statuses are not written", n)
		}
	})
	s.ApplyCRDs(t, kubeapi.GatewayAPICRDs(t, "standard"))
	t.Run("classes are there once the definitions are", func(t *testing.T) {
		for _, class := range []string{"istio", "fairlead", "istio-remote"} {
			a.has("gatewayclasses", "", class, "Accepted=True/Accepted 1")
		}
		features, _, err := unstructured.NestedSlice(a.get("gatewayclasses", "", "istio").Object, "status", "supportedFeatures")
		if err != nil || len(features) != gatewayFeatures {
			t.Errorf("%d features, want %d, %v", len(features), gatewayFeatures, err)
		}
	})
	s.Apply(t, edgeShop+"---"+edge+"---\n"+httpRoute("web", "edge", "web")+httpRoute("lost", "edge", "nowhere")+
		httpRoute("other", "elsewhere", "web"))
	t.Run("what objects say", func(t *testing.T) {
		a.has("gateways", "shop", "edge", "Accepted=True/ListenersNotValid 1", "Programmed=False/AddressNotAssigned 1",
			"http: attached 2", "http: Accepted=True/Accepted 1", "http: Programmed=Unknown/Pending 1",
			"https: ResolvedRefs=False/RefNotPermitted 1", "https: Programmed=False/Invalid 1")
		a.has("httproutes", "shop", "web", "edge: Accepted=True/Accepted 1", "edge: ResolvedRefs=True/ResolvedRefs 1")
		a.has("httproutes", "shop", "lost", "edge: Accepted=True/Accepted 1", "edge: ResolvedRefs=False/BackendNotFound 1")
	})
	t.Run("a Gateway is programmed when its gateways have it and its Service an address", func(t *testing.T) {
		s.Apply(t, "{apiVersion: v1, kind: Pod, metadata: {name: edge-1, namespace: shop, labels: "+
			"{gateway.networking.k8s.io/gateway-name: edge}}, spec: {serviceAccountName: edge, containers: [{name: a, image: a}]}}")
		a.setStatus(corev1.SchemeGroupVersion.WithResource("pods").Resource, "shop", "edge-1",
			`{"podIP":"10.9.0.1","podIPs":[{"ip":"10.9.0.1"}],"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}`)
		address := startXDSServer(whole, a.watcher).String()
		connectNode(whole, a.watcher, address, "router~10.9.0.1~edge-1.shop~shop.svc.cluster.local", "edge", nil)
		a.has("gateways", "shop", "edge", "http: Programmed=True/Programmed 1", "Programmed=False/AddressNotAssigned 1")
		a.setStatus("services", "shop", "edge-istio", `{"loadBalancer":{"ingress":[{"ip":"192.0.2.7"}]}}`)
		a.has("gateways", "shop", "edge", "Programmed=True/Programmed 1", "address IPAddress 192.0.2.7")
	})
	t.Run("a Secret, then a grant: the listener is served; without the grant it is not", func(t *testing.T) {
		chain, key := a.watcher.ca.NewServer("*.example.com")
		s.Apply(t, secret("keys", "wildcard", chain, key))
		s.Apply(t, secretGrant)
		a.has("gateways", "shop", "edge", "https: ResolvedRefs=True/ResolvedRefs 1", "https: Programmed=True/Programmed 1",
			"Accepted=True/Accepted 1")
		gateway, stranger := a.watchSecret(t, "keys", "wildcard", "edge"), a.watchSecret(t, "keys", "wildcard", "stranger")
		if gateway.next() == "" || stranger.next() != "" {
			t.Error("the gateway does not get the key, or somebody else does")
		}
		began := time.Now()
		testkit.NoError(t, a.resource("referencegrants", "keys").Delete(t.Context(), "edge", metav1.DeleteOptions{}))
		if gateway.next() != "" {
			t.Error("the gateway keeps the key")
		}
		took := time.Since(began)
		t.Logf("the key is taken back %s after the grant is removed", took.Round(time.Millisecond))
		if took > time.Second {
			t.Error("want 1 s")
		}
		testkit.Eventually(t, patience, func() error {
			if log := string(testkit.Must(os.ReadFile(a.audit))(t)); !strings.Contains(log, `"verb":"end access"`) ||
				!strings.Contains(log, a.watcher.ca.ID("shop", "edge").String()) {
				return fmt.Errorf("the audit log has %s", log)
			}
			return nil
		})
		a.has("gateways", "shop", "edge", "https: ResolvedRefs=False/RefNotPermitted 1")
		s.Apply(t, secretGrant)
		if gateway.next() == "" {
			t.Error("the gateway does not get the key back")
		}
		a.has("gateways", "shop", "edge", "https: ResolvedRefs=True/ResolvedRefs 1")
	})
	t.Run("a Secret that goes, and a Service that comes", func(t *testing.T) {
		testkit.NoError(t, s.Client(t).CoreV1().Secrets("keys").Delete(t.Context(), "wildcard", metav1.DeleteOptions{}))
		a.has("gateways", "shop", "edge", "https: ResolvedRefs=False/InvalidCertificateRef 1")
		s.Apply(t, "{apiVersion: v1, kind: Service, metadata: {name: nowhere, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}")
		a.has("httproutes", "shop", "lost", "edge: ResolvedRefs=True/ResolvedRefs 1")
	})
	t.Run("what others have written stays", func(t *testing.T) {
		other := `{"parentRef":{"name":"elsewhere"},"controllerName":"example.com/other","conditions":[{"type":"Accepted","status":"True",` +
			`"reason":"Accepted","message":"theirs","lastTransitionTime":"2020-01-01T00:00:00Z"}]}`
		before := a.get("httproutes", "shop", "web")
		parents, _, _ := unstructured.NestedSlice(before.Object, "status", "parents")
		a.setStatus("httproutes", "shop", "other", `{"parents":[`+other+`]}`)
		a.setStatus("httproutes", "shop", "web", `{"parents":[`+other+`,`+jsonOf(t, parents[0])+`]}`)
		seen := `{"type":"example.com/Seen","status":"True","reason":"Seen","message":"m","lastTransitionTime":"2020-01-01T00:00:00Z"}`
		conditions, _, _ := unstructured.NestedSlice(a.get("gateways", "shop", "edge").Object, "status", "conditions")
		a.setStatus("gateways", "shop", "edge", `{"conditions":[`+seen+`,`+strings.TrimPrefix(jsonOf(t, conditions), "[")+"}")
		// A change makes all three be written again.
		both := httpRoute("web", "edge", "web") + httpRoute("other", "edge", "web")
		s.Apply(t, strings.ReplaceAll(both, "port: 80}]", "port: 80, weight: 2}]"))
		s.Apply(t, strings.Replace(edge, "{name: http, port: 80", "{name: http, port: 8080", 1))
		a.has("httproutes", "shop", "other", "elsewhere: Accepted=True/Accepted <nil>", "edge: Accepted=True/Accepted 2")
		a.has("httproutes", "shop", "web", "elsewhere: Accepted=True/Accepted <nil>", "edge: Accepted=True/Accepted 2")
		a.has("gateways", "shop", "edge", "example.com/Seen=True/Seen <nil>", "Accepted=True/ListenersNotValid 2")
		// The parent of ours goes, theirs stays.
		s.Apply(t, strings.Replace(httpRoute("other", "elsewhere", "web"), "port: 80}]", "port: 80, weight: 3}]", 1))
		a.lacks("httproutes", "shop", "other", "edge:")
		a.has("httproutes", "shop", "other", "elsewhere: Accepted=True/Accepted <nil>")
	})
	t.Run("nothing is written while nothing changes", func(t *testing.T) {
		s.Apply(t, httpRoute("settled", "edge", "web"))
		a.has("httproutes", "shop", "settled", "edge: Accepted=True/Accepted 1")
		a.quiet()
		before, version := a.watcher.metric("status_writes_total"), a.get("gateways", "shop", "edge").GetResourceVersion()
		s.Apply(t, "{apiVersion: v1, kind: Service, metadata: {name: unrelated, namespace: shop}, spec: {ports: [{port: 80}]}}")
		a.quiet()
		if after := a.watcher.metric("status_writes_total"); after != before {
			t.Errorf("%v statuses are handed on", after-before)
		}
		if now := a.get("gateways", "shop", "edge").GetResourceVersion(); now != version {
			t.Error("the Gateway is written")
		}
	})
	t.Run("1,000 routes are counted within a second after the last, in a few writes", func(t *testing.T) {
		const routes = 1000
		before := a.watcher.metric("status_writes_total", "/gateways", "written")
		for i := 0; i < routes; i += 100 {
			var text strings.Builder
			for j := range 100 {
				text.WriteString(httpRoute(fmt.Sprint("many-", i+j), "edge", "web"))
			}
			s.Apply(t, text.String())
		}
		took := a.has("gateways", "shop", "edge", fmt.Sprint("http: attached ", routes+3))
		writes := a.watcher.metric("status_writes_total", "/gateways", "written") - before
		t.Logf("counted %s after the last route, in %v writes", took.Round(time.Millisecond), writes)
		if took > 1500*time.Millisecond {
			t.Errorf("want 1 s, or 1.5 s on a busy machine")
		}
		if writes > routes/10 {
			t.Errorf("%v writes", writes)
		}
		a.has("httproutes", "shop", fmt.Sprint("many-", routes-1), "edge: Accepted=True/Accepted 1")
	})
}

// setStatus patches the status of an object, as its controller does.
func (a *api) setStatus(resource, namespace, name, status string) {
	a.t.Helper()
	r := a.resource(resource, namespace)
	_, err := r.Patch(a.t.Context(), name, types.MergePatchType, []byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status")
	testkit.NoError(a.t, err)
}

// quiet waits until no status has been handed on for two rounds.
func (a *api) quiet() {
	a.t.Helper()
	last, same := -1.0, 0
	testkit.Eventually(a.t, patience, func() error {
		now := a.watcher.metric("status_writes_total") + a.watcher.metric("status_queue")
		if same++; now != last {
			last, same = now, 0
		}
		if same < 30 { // Eventually looks every 50 ms or so
			return fmt.Errorf("%v statuses so far", now)
		}
		return nil
	})
}

// lacks waits until no line of a status begins with a text.
func (a *api) lacks(resource, namespace, name, prefix string) {
	a.t.Helper()
	testkit.Eventually(a.t, patience, func() error {
		lines := statusLines(a.get(resource, namespace, name))
		if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, prefix) }) {
			return fmt.Errorf("%q in\n%s", prefix, strings.Join(lines, "\n"))
		}
		return nil
	})
}
