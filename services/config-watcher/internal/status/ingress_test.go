package status

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	mesh "istio.io/api/mesh/v1alpha1"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// sink records statuses. It has no room while full is true.
type sink struct {
	full bool
	now  map[string]string
	puts int
}

func (s *sink) Put(to Target, st *Status) bool {
	if s.full {
		return false
	}
	var list []string
	for _, a := range st.LoadBalancer {
		list = append(list, a.IP+a.Hostname)
	}
	s.now[to.Key.Name] = fmt.Sprintf("%d %s", to.Generation, strings.Join(list, " "))
	s.puts++
	return true
}

func (s *sink) Forget(k object.Key) { delete(s.now, k.Name) }
func (s *sink) Failure() error      { return nil }

func parsed(t *testing.T, yaml string) []normalise.Change {
	t.Helper()
	docs, problems := manifest.Parse("", []byte(yaml))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	var out []normalise.Change
	for _, d := range docs {
		o, err := validate.Document(d)
		if err != nil {
			t.Fatal(err)
		}
		o.Source = "store"
		out = append(out, normalise.Change{Key: o.Key, Object: o})
	}
	return out
}

func TestIngressesShowTheAddressesOfTheirGateways(t *testing.T) {
	to := &sink{now: map[string]string{}}
	x := NewIngresses(map[string]Sink{"store": to})
	settings := meshdefaults.MeshConfig()
	want := func(a, b string) {
		t.Helper()
		if got := (map[string]string{"a": to.now["a"], "b": to.now["b"]}); !reflect.DeepEqual(got, map[string]string{"a": a, "b": b}) {
			t.Errorf("the statuses are %q", got)
		}
	}
	apply := func(yaml string) { t.Helper(); x.Submit(parsed(t, yaml), settings) }
	remove := func(kind, namespace, name string) {
		x.Submit([]normalise.Change{{Key: object.Key{Kind: kind, Namespace: namespace, Name: name}}}, settings)
	}
	in := func(name, class string) string {
		return "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: " + name +
			", namespace: apps, generation: 3, annotations: {kubernetes.io/ingress.class: " + class +
			"}}\nspec: {defaultBackend: {service: {name: x, port: {number: 80}}}}\n---\n"
	}
	svc := func(spec, status string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: istio-ingressgateway, namespace: istio-system}\nspec: {" + spec +
			"ports: [{port: 80}]}\nstatus: {" + status + "}\n---\n"
	}
	apply(in("a", "istio") + in("b", "nginx"))
	want("3 ", "") // not ours: b; no Service yet
	apply(svc("externalIPs: [203.0.113.9], ", "loadBalancer: {ingress: [{hostname: lb.example.com}, {ip: 203.0.113.8}, {ip: 203.0.113.8}]}"))
	want("3 203.0.113.8 203.0.113.9 lb.example.com", "")
	apply(in("b", "istio"))
	want("3 203.0.113.8 203.0.113.9 lb.example.com", "3 203.0.113.8 203.0.113.9 lb.example.com")
	puts := to.puts
	apply(svc("externalIPs: [203.0.113.9], selector: {a: b}, ", "loadBalancer: {ingress: [{hostname: lb.example.com}, {ip: 203.0.113.8}]}"))
	if to.puts != puts {
		t.Error("equal addresses are written again")
	}
	apply(in("b", "nginx"))
	want("3 203.0.113.8 203.0.113.9 lb.example.com", "")
	apply(svc("type: ExternalName, externalName: gateway.example.com, ", ""))
	want("3 gateway.example.com", "")
	to.full = true
	remove("Service", "istio-system", "istio-ingressgateway")
	want("3 gateway.example.com", "")
	to.full = false
	x.Submit(nil, settings)
	want("3 ", "")

	// Without a Service: the nodes on which gateways run.
	settings = meshdefaults.MeshConfig()
	settings.IngressService = ""
	node := func(name, kind, ip string) string {
		return "apiVersion: v1\nkind: Node\nmetadata: {name: " + name + "}\nstatus: {addresses: [{type: " + kind + ", address: " + ip +
			"}]}\n---\n"
	}
	pod := func(name, namespace, labels, node, status string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: " + namespace + ", labels: {" + labels +
			"}}\nspec: {nodeName: " + node + ", containers: [{name: c}]}\nstatus: {" + status + "}\n---\n"
	}
	const running = "podIP: 10.0.0.1, phase: Running"
	apply(node("n1", "ExternalIP", "203.0.113.1") + node("n2", "ExternalIP", "203.0.113.2") + node("n3", "InternalIP", "10.0.0.3") +
		node("n4", "ExternalIP", "203.0.113.4") +
		pod("g1", "istio-system", "istio: ingressgateway", "n1", running) + pod("g2", "istio-system", "istio: ingressgateway", "n2",
		"phase: Pending") +
		pod("g3", "istio-system", "istio: ingressgateway", "n3", running) + pod("other", "istio-system", "istio: egressgateway", "n4", running) +
		pod("away", "apps", "istio: ingressgateway", "n4", running))
	want("3 203.0.113.1", "")
	apply(pod("g2", "istio-system", "istio: ingressgateway", "n2", running))
	want("3 203.0.113.1 203.0.113.2", "")
	remove("Pod", "istio-system", "g1")
	want("3 203.0.113.2", "")
	settings = &mesh.MeshConfig{IngressControllerMode: mesh.MeshConfig_STRICT, IngressClass: "istio", IngressSelector: "egressgateway"}
	apply("")
	want("3 203.0.113.4", "")
	settings = &mesh.MeshConfig{IngressControllerMode: mesh.MeshConfig_OFF}
	apply("")
	want("", "")
}

func TestLoadBalancerOfAnIngressIsMerged(t *testing.T) {
	list := func(l ...any) map[string]any { return map[string]any{"loadBalancer": map[string]any{"ingress": l}} }
	ip, name := map[string]any{"ip": "10.0.0.1"}, map[string]any{"hostname": "a.b"}
	both := []networkingv1.IngressLoadBalancerIngress{{IP: "10.0.0.1"}, {Hostname: "a.b"}}
	none := []networkingv1.IngressLoadBalancerIngress{}
	for name, tc := range map[string]struct {
		before  map[string]any
		to      []networkingv1.IngressLoadBalancerIngress
		after   map[string]any
		changed bool
	}{
		"first":         {nil, both, list(ip, name), true},
		"the same":      {list(ip, name), both, list(ip, name), false},
		"another order": {list(name, ip), both, list(ip, name), true},
		"none, and there is none": {map[string]any{"loadBalancer": map[string]any{}}, none, map[string]any{"loadBalancer": map[string]any{}},
			false},
		"none, and there was one":      {list(ip), none, map[string]any{"loadBalancer": map[string]any{"ingress": []any{}}}, true},
		"what others have written too": {map[string]any{"x": "y"}, none, map[string]any{"x": "y"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			text := fmt.Sprint(tc.before)
			after, changed := Merge(tc.before, &Status{Generation: 2, LoadBalancer: tc.to}, time.Time{})
			if changed != tc.changed || !reflect.DeepEqual(after, tc.after) || fmt.Sprint(tc.before) != text {
				t.Errorf("%v %v", changed, after)
			}
		})
	}
}
