package kube

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

// shop is a small mesh: a Service with an endpoint, its route, and a policy.
const shop = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
endpoints: [{addresses: [10.1.1.1]}]
ports: [{name: http, port: 8080}]
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: cart, namespace: shop}, spec: {hosts: [cart], http: [{route: [{destination: {host: cart}}]}]}}
---
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: cart, namespace: shop}, spec: {host: cart}}
---
{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: strict, namespace: shop}, spec: {mtls: {mode: STRICT}}}
`

const (
	cartService   = "Service shop/cart.shop.svc.cluster.local"
	cartRoute     = "VirtualService shop/cart"
	cartRule      = "DestinationRule shop/cart"
	strictPolicy  = "PeerAuthentication shop/strict"
	cartEndpoints = "EndpointSet shop/cart.shop.svc.cluster.local/http"
)

// shopKeys are the resources of shop.
var shopKeys = []string{cartService, cartRoute, cartRule, strictPolicy}

func hasShop(t *testing.T, v *view) {
	t.Helper()
	for _, key := range shopKeys {
		v.has(key, nil)
	}
	testkit.Eventually(t, patience, func() error {
		if v.count("EndpointSet") == 0 {
			return fmt.Errorf("no EndpointSet, %s is missing", cartEndpoints)
		}
		return nil
	})
}

var virtualServices = schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "virtualservices"}

func TestAPIServerIsAway(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	m := newMesh(t, s)
	s.Apply(t, shop)
	w := startWatcher(t, s.Kubeconfig)
	v := w.subscribe()
	hasShop(t, v)
	before := w.until("synced", func(st sourceState) bool { return st.Synced && st.Degraded == "" })
	removed := v.removals()

	t.Run("objects stay, and the source says since when it cannot be read", func(t *testing.T) {
		away := time.Now()
		s.Kill()
		st := w.until("unreachable", func(st sourceState) bool { return st.Degraded != "" && len(st.DegradedKinds) > 10 })
		if st.Objects != before.Objects || !st.Synced {
			t.Errorf("it has %d objects of %d", st.Objects, before.Objects)
		}
		if since := st.DegradedKinds[0].Since; since.Before(away.Add(-2*time.Second)) || since.After(time.Now()) ||
			st.DegradedKinds[0].Reason != "unreachable" {
			t.Errorf("%+v, away since %v", st.DegradedKinds[0], away)
		}
		text, err := w.admin().Status(t.Context(), &configv1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		told := ""
		for _, source := range text.GetSources() {
			told += source.GetDegraded()
		}
		if !strings.Contains(told, "cannot be reached since ") || !strings.Contains(told, "connection refused") {
			t.Errorf("the administrator is told %q", told)
		}
		if code, body, err := w.get("/readyz"); code != http.StatusOK {
			t.Errorf("/readyz: %d %s %v", code, body, err)
		}
		hasShop(t, v)
		if n := v.removals() - removed; n != 0 {
			t.Errorf("%d resources were removed", n)
		}
	})

	t.Run("a config-watcher that starts meanwhile serves its last good state, marked as such", func(t *testing.T) {
		w.stop()
		w.start()
		w.ready()
		st := w.until("restored", func(st sourceState) bool { return st.LastGood != nil })
		if st.Synced || st.Objects != before.Objects {
			t.Errorf("synced %v, %d objects of %d", st.Synced, st.Objects, before.Objects)
		}
		v = w.subscribe()
		hasShop(t, v)
		if n := w.metric("source_last_good", `source="`+sourceName+`"`); n != 1 {
			t.Errorf("the metric says %v", n)
		}
	})

	t.Run("one without a last good state serves nothing, and says why", func(t *testing.T) {
		fresh := newWatcher(t, s.Kubeconfig)
		fresh.start()
		testkit.Eventually(t, patience, func() error {
			code, body, err := fresh.get("/readyz")
			if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(body, sourceName+" cannot be read and never was")) {
				err = fmt.Errorf("%d %s", code, body)
			}
			return err
		})
		if n := fresh.metric("revision_sequence"); n != 0 {
			t.Errorf("it serves revision %v", n)
		}
	})

	t.Run("when it is back, differences arrive: changes, and what has gone", func(t *testing.T) {
		w.signal(syscall.SIGSTOP)
		s.Resume(t)
		s.Apply(t, `{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: new, namespace: shop}, spec: {host: cart}}`)
		if err := m.client.Resource(virtualServices).Namespace("shop").Delete(t.Context(), "cart", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.signal(syscall.SIGCONT)
		v.has("DestinationRule shop/new", nil)
		v.lacks(cartRoute)
		w.until("read", func(st sourceState) bool { return st.Synced && st.LastGood == nil && st.Degraded == "" })
		v.has(cartService, nil)
		v.has(strictPolicy, nil)
	})
}

func TestCustomResourceDefinitionsComeAndGo(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	s.Apply(t, `
{apiVersion: v1, kind: Service, metadata: {name: early}, spec: {ports: [{name: http, port: 80}]}}
`)
	w := startWatcher(t, s.Kubeconfig)
	v := w.subscribe()
	v.has("Service default/early.default.svc.cluster.local", nil)

	t.Run("kinds that come while it runs", func(t *testing.T) {
		s.ApplyCRDs(t)
		s.Apply(t, shop)
		hasShop(t, v)
	})
	t.Run("a kind that goes takes its objects along, and no others", func(t *testing.T) {
		m := newMesh(t, s)
		definitions := m.client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
			Resource: "customresourcedefinitions"})
		if err := definitions.Delete(t.Context(), "virtualservices.networking.istio.io", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		v.lacks(cartRoute)
		w.until("without VirtualServices, and not degraded", func(st sourceState) bool { return st.Degraded == "" && len(st.DegradedKinds) == 0 })
		testkit.Eventually(t, patience, func() error {
			if n := w.metric("source_kind_watches", `kind="VirtualService.networking.istio.io"`); n != 0 {
				return fmt.Errorf("%v watches", n)
			}
			return nil
		})
		for _, key := range []string{cartService, cartRule, strictPolicy} {
			v.has(key, nil)
		}
	})
	t.Run("and back", func(t *testing.T) {
		s.ApplyCRDs(t)
		s.Apply(t, shop)
		hasShop(t, v)
	})
}

func TestABadObjectKeepsItsLastGoodVersion(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	newMesh(t, s)
	s.Apply(t, shop)
	w := startWatcher(t, s.Kubeconfig)
	v := w.subscribe()
	hasShop(t, v)
	// The API server accepts these: only config-watcher knows more of the kinds than their schemas say.
	s.Apply(t, `
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: cart, namespace: shop}, spec: {hosts: [cart], gateways: ["a/b/c/d"], http: [{route: [{destination: {host: cart}}]}]}}
---
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: later, namespace: shop}, spec: {host: cart}}
---
{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: broken, namespace: shop, annotations: {internal.istio.io/parents: a}}, spec: {mtls: {mode: PERMISSIVE}}}
`)
	v.has("DestinationRule shop/later", nil) // it came after the bad one
	refused := func() {
		t.Helper()
		st := w.until("refused", func(st sourceState) bool { return st.Refused > 0 && st.Held == 1 })
		v.has(cartRoute, func(r *configv1.Resource) bool { return len(r.GetIstioConfig().GetSpec().GetValue()) > 0 })
		v.has("PeerAuthentication shop/broken", nil)
		answer, err := w.admin().Status(t.Context(), &configv1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		named := ""
		for _, f := range answer.GetFindings() {
			named += f.GetObject() + ": " + f.GetMessage() + "\n"
		}
		if !strings.Contains(named, "VirtualService shop/cart") || !strings.Contains(named, "PeerAuthentication shop/broken") {
			t.Errorf("of %d refused objects the administrator is told:\n%s", st.Refused, named)
		}
	}
	refused()
	t.Run("after a restart too", func(t *testing.T) {
		w.stop()
		w.start()
		w.ready()
		v = w.subscribe()
		refused()
	})
	t.Run("until it is corrected", func(t *testing.T) {
		s.Apply(t, shop+`---
{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: broken, namespace: shop, annotations: {}}, spec: {mtls: {mode: PERMISSIVE}}}
`)
		w.until("without problems", func(st sourceState) bool { return st.Refused == 0 && st.Held == 0 })
	})
}
