package apiserver

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
)

func TestMain(m *testing.M) { os.Exit(kubeapi.Main(m)) }

func tree(t *testing.T, text string) (out map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestServer: objects reach a real API server as a scenario states them, and the next fleet finds nothing of them.
func TestServer(t *testing.T) {
	programs, err := binaries.Find(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, ctx := Start(t, programs.Path("config-watcher"), "../../../.."), t.Context()
	put := func(t *testing.T, text string, replaces bool) Written {
		t.Helper()
		w, err := s.Put(ctx, tree(t, text), replaces)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	get := func(t *testing.T, group, resource, namespace, name string) *unstructured.Unstructured {
		t.Helper()
		u, err := s.client.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}).Namespace(namespace).Get(ctx,
			name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	const route = "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: %, namespace: fresh}, spec: {hosts: " +
		"[a.example.com], http: [{route: [{destination: {host: b.example.com}}]}]}}"

	t.Run("versions grow, also over kinds", func(t *testing.T) {
		first := put(t, strings.Replace(route, "%", "b", 1), false)
		second := put(t, "{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: fresh}}", false)
		if first.Kind != "VirtualService.networking.istio.io" || second.Kind != "Secret fresh/s" || first.Version == 0 ||
			second.Version <= first.Version {
			t.Errorf("%v, then %v", first, second)
		}
	})
	t.Run("an object is younger than those before it, whatever its name", func(t *testing.T) {
		put(t, strings.Replace(route, "%", "a", 1), false)
		a, b := get(t, "networking.istio.io", "virtualservices", "fresh", "a"), get(t, "networking.istio.io", "virtualservices", "fresh", "b")
		if !b.GetCreationTimestamp().Time.Before(a.GetCreationTimestamp().Time) {
			t.Errorf("b was created at %s, and a after it at %s", b.GetCreationTimestamp(), a.GetCreationTimestamp())
		}
	})
	t.Run("who refuses", func(t *testing.T) {
		for name, tc := range map[string]struct {
			object  string
			webhook bool
		}{
			"the webhook": {"{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: bad}, spec: {hosts: [a b]}}",
				true},
			"the schema": {"{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: bad}, spec: {mtls: {mode: " +
				"SOMETIMES}}}", false},
			"the schema, of a field": {"{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: bad}, spec: {mtlz: {}}}",
				false},
			"Kubernetes' validation":  {"{apiVersion: v1, kind: Service, metadata: {name: bad}, spec: {ports: [{port: 0}]}}", false},
			"nobody knows the kind":   {"{apiVersion: v1, kind: Nothing, metadata: {name: bad}}", false},
			"an object without kinds": {"{metadata: {name: bad}}", false},
		} {
			_, err := s.Put(ctx, tree(t, tc.object), false)
			if denied := (*Denied)(nil); !errors.As(err, &denied) || denied.Webhook != tc.webhook {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	const service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: fresh}, spec: {clusterIP: ADDRESS, selector: {app: " +
		"web}, ports: [{port: 80}]}}"
	t.Run("what cannot be changed is made anew", func(t *testing.T) {
		put(t, strings.Replace(service, "ADDRESS", "198.19.7.7", 1), false)
		before := get(t, "", "services", "fresh", "web").GetUID()
		put(t, strings.Replace(service, "ADDRESS", "198.19.7.7", 1), true)
		if now := get(t, "", "services", "fresh", "web").GetUID(); now != before {
			t.Error("a Service that stays as it is was made anew")
		}
		put(t, strings.Replace(service, "ADDRESS", "198.19.7.8", 1), true)
		if now := get(t, "", "services", "fresh", "web").GetUID(); now == before {
			t.Error("the Service is the same, with another address")
		}
	})
	t.Run("controllers make EndpointSlices of Pods with their status", func(t *testing.T) {
		put(t, "{apiVersion: v1, kind: Node, metadata: {name: node}}", false)
		for _, ready := range []bool{false, true} {
			status := map[bool]string{false: "'False'", true: "'True'"}[ready]
			put(t, "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: fresh, labels: {app: web}}, spec: {nodeName: node, containers: "+
				"[{name: app, image: app}]}, "+
				"status: {phase: Running, podIP: 198.18.0.9, podIPs: [{ip: 198.18.0.9}], conditions: [{type: Ready, status: "+status+"}]}}", ready)
			w, err := s.AwaitSlices(ctx, map[string]Endpoints{"fresh/web": {netip.MustParseAddr("198.18.0.9"): ready}})
			if err != nil || w.Kind != "EndpointSlice.discovery.k8s.io" || w.Version == 0 {
				t.Errorf("%v, %v", w, err)
			}
		}
	})
	t.Run("an object that is not there cannot be deleted", func(t *testing.T) {
		if err := s.Delete(ctx, "", "VirtualService", "fresh", "b"); err != nil {
			t.Error(err)
		}
		if err := s.Delete(ctx, "networking.istio.io/v1", "VirtualService", "fresh", "b"); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	})
	t.Run("nothing is left for the next fleet", func(t *testing.T) {
		put(t, "{apiVersion: v1, kind: Namespace, metadata: {name: fresh, labels: {a: b}}}", true)
		if err := s.Clean(ctx); err != nil {
			t.Fatal(err)
		}
		for _, m := range s.kinds.all() {
			list, err := s.client.Resource(m.Resource).List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range list.Items {
				if u := &list.Items[i]; !isKubernetes(u) && (u.GetKind() != "Namespace" || u.GetLabels()["a"] != "") {
					t.Errorf("%s %s is left", u.GetKind(), keyOf(u))
				}
			}
		}
	})
}
