// Package kube makes a mesh in a real Kubernetes API server, runs istiod beside it, and changes the mesh, for the
// benchmark that compares Fairlead with istiod.
package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.dev/tests/bench/internal/mesh"
)

// Spec says how large the mesh is. Every namespace has PerNamespace Services of PerService endpoints, and Rules objects
// of the mesh. Namespace 0 is Shared, which every proxy sees besides its own.
type Spec struct {
	Namespaces, Proxies int
}

// What is in each namespace.
const (
	PerNamespace = 20
	PerService   = 10
	// Rules are a Sidecar, virtualServices, destinationRules and one ServiceEntry, or a Gateway in every fifth
	// namespace.
	Rules            = 2 + virtualServices + destinationRules
	virtualServices  = 4
	destinationRules = 4
	// perDeployment proxies are Pods of one Deployment, behind the first Service of their namespace.
	perDeployment = 2
)

// domain is what the names of Services end with.
const domain = "cluster.local"

// Shared is the namespace that all proxies see.
const Shared = "shared"

// Resources of the mesh's kinds.
var (
	VirtualServices = networking("virtualservices")
	sidecars        = networking("sidecars")
	rules           = networking("destinationrules")
	serviceEntries  = networking("serviceentries")
	gateways        = networking("gateways")
)

func networking(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: resource}
}

// Services is how many there are.
func (s Spec) Services() int { return s.Namespaces * PerNamespace }

// Namespace n.
func Namespace(n int) string {
	if n == 0 {
		return Shared
	}
	return fmt.Sprintf("team-%d", n)
}

// ServiceName is that of Service i of a namespace.
func ServiceName(i int) string { return fmt.Sprintf("svc-%d", i) }

// Host is the FQDN of a Service.
func Host(name, namespace string) string {
	return name + "." + namespace + ".svc." + domain
}

// address of an endpoint, which is number e of Service i of namespace n.
func address(n, i, e int) string {
	k := (n*PerNamespace+i)*PerService + e
	return fmt.Sprintf("10.%d.%d.%d", 64+k/62500, k/250%250, 1+k%250)
}

// labels of the Pods behind a Service.
func labels(i int) map[string]string { return map[string]string{"app": ServiceName(i)} }

// NewService makes a Service; the API server gives it an address.
func NewService(name, namespace string, selector map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: selector},
		Spec: corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{
			Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP,
		}}},
	}
}

// NewSlice makes the EndpointSlice of a Service. In place of the first endpoints, addresses can be given.
func NewSlice(n, i int, first ...string) *discoveryv1.EndpointSlice {
	slice := emptySlice(ServiceName(i), Namespace(n))
	for e := range PerService {
		at := address(n, i, e)
		if e < len(first) {
			at = first[e]
		}
		slice.Endpoints = append(slice.Endpoints, endpoint(at))
	}
	return slice
}

func emptySlice(name, namespace string) *discoveryv1.EndpointSlice {
	port, number, protocol := "http", int32(8080), corev1.ProtocolTCP
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name + "-1", Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number, Protocol: &protocol}},
	}
}

func endpoint(at string) discoveryv1.Endpoint {
	yes, no := true, false
	return discoveryv1.Endpoint{Addresses: []string{at},
		Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}}
}

// pod is where a proxy runs.
type pod struct{ n, e int }

func (s Spec) pods() []pod {
	var out []pod
	teams := s.Namespaces - 1
	for k := range s.Proxies {
		out = append(out, pod{1 + k/perDeployment%teams, k%perDeployment + perDeployment*(k/(perDeployment*teams))})
	}
	return out
}

func (p pod) name() string { return fmt.Sprintf("%s-%d", ServiceName(0), p.e) }

func (p pod) object() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.name(), Namespace: Namespace(p.n), Labels: labels(0)},
		Spec: corev1.PodSpec{ServiceAccountName: "default",
			Containers: []corev1.Container{{Name: "app", Image: "app"}, {Name: "istio-proxy", Image: "proxy"}}},
	}
}

// status of the running Pod.
func (p pod) status() corev1.PodStatus {
	ip := address(p.n, 0, p.e)
	return corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
}

// Clients lists the proxies.
func (s Spec) Clients() []mesh.Proxy {
	var out []mesh.Proxy
	for _, p := range s.pods() {
		out = append(out, mesh.Sidecar(p.name(), Namespace(p.n), address(p.n, 0, p.e), labels(0)))
	}
	return out
}

// object of a mesh's kind.
type object struct {
	resource schema.GroupVersionResource
	*unstructured.Unstructured
}

func meshObject(resource schema.GroupVersionResource, kind, name, namespace string, spec map[string]any) object {
	return object{resource, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"name": name, "namespace": namespace}, "spec": spec,
	}}}
}

// rules of namespace n.
func rulesOf(n int) []object {
	namespace := Namespace(n)
	out := []object{meshObject(sidecars, "Sidecar", "default", namespace, map[string]any{
		"egress": []any{map[string]any{"hosts": []any{"./*", Shared + "/*"}}},
	})}
	for i := range virtualServices {
		out = append(out, route(n, i, "0."))
	}
	for i := range destinationRules {
		out = append(out, meshObject(rules, "DestinationRule", ServiceName(i), namespace, map[string]any{
			"host": Host(ServiceName(i), namespace),
			"trafficPolicy": map[string]any{
				"connectionPool": map[string]any{"tcp": map[string]any{"maxConnections": int64(100)},
					"http": map[string]any{"http2MaxRequests": int64(1000)}},
				"outlierDetection": map[string]any{"consecutive5xxErrors": int64(7), "interval": "30s", "baseEjectionTime": "60s"},
				"loadBalancer":     map[string]any{"simple": "LEAST_REQUEST"},
			},
		}))
	}
	port := map[string]any{"number": int64(80), "name": "http", "protocol": "HTTP"}
	if n%5 == 0 {
		return append(out, meshObject(gateways, "Gateway", "ingress", namespace, map[string]any{
			"selector": map[string]any{"istio": "ingress"},
			"servers":  []any{map[string]any{"port": port, "hosts": []any{namespace + ".example.com"}}},
		}))
	}
	return append(out, meshObject(serviceEntries, "ServiceEntry", "external", namespace, map[string]any{
		"hosts": []any{"api." + namespace + ".example.com"}, "location": "MESH_EXTERNAL", "resolution": "STATIC", "exportTo": []any{"."},
		"ports":     []any{port},
		"endpoints": []any{map[string]any{"address": fmt.Sprintf("172.16.%d.%d", n/250, 1+n%250)}},
	}))
}

// Route is VirtualService i of namespace n. Its routes add a header with the text.
func Route(n, i int, text string) *unstructured.Unstructured { return route(n, i, text).Unstructured }

func route(n, i int, text string) object {
	namespace := Namespace(n)
	to := func(service, weight int) map[string]any {
		return map[string]any{"destination": map[string]any{"host": Host(ServiceName(service), namespace)}, "weight": int64(weight)}
	}
	header := map[string]any{"request": map[string]any{"set": map[string]any{"x-revision": text}}}
	return meshObject(VirtualServices, "VirtualService", ServiceName(i), namespace, map[string]any{
		"hosts": []any{Host(ServiceName(i), namespace)},
		"http": []any{
			map[string]any{
				"match": []any{map[string]any{"uri": map[string]any{"prefix": "/v2"},
					"headers": map[string]any{"x-user": map[string]any{"exact": "test"}}}},
				"route": []any{to(i+1, 100)}, "timeout": "5s", "headers": header,
			},
			map[string]any{
				"route": []any{to(i, 90), to(i+1, 10)}, "timeout": "10s", "headers": header,
				"retries": map[string]any{"attempts": int64(3), "perTryTimeout": "2s", "retryOn": "5xx,connect-failure"},
			},
		},
	})
}
