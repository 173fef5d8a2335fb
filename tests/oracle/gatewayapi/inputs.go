// Package gatewayapi gives the inputs of Istio's tests of its Gateway API translation to istiod and to Fairlead, each
// with an API server of its own, and sends the same requests through stock Envoys of both.
package gatewayapi

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/tests/internal/kubeapi"
)

// Groups of the kinds that inputs have.
const (
	gatewayGroup = "gateway.networking.k8s.io"
	istioGroup   = "networking.istio.io"
)

// Ranges of the addresses of Pods and of backends. A port of a backend is the Service's, further up.
var (
	podRange     = netip.MustParsePrefix("10.98.0.0/16")
	backendRange = netip.MustParsePrefix("10.99.0.0/16")
)

const portOffset = 20000

// missing are the names of what inputs refer to and what is not there.
var missing = []string{"nonexistent", "does-not-exist", "fake-service", "unknown"}

func isMissing(name string) bool {
	return slices.ContainsFunc(missing, func(m string) bool { return strings.Contains(name, m) })
}

// input is a file of Istio's tests. Its namespaces have its name before their own, so that all inputs are in one API
// server.
type input struct {
	name string
	// objects are the file's, and those that it refers to and that its tests make in their code.
	objects []*unstructured.Unstructured
	routes  []*route
	proxies []*proxy
	// services are protocols of ports, by namespace/name; backends has who answers for each.
	services map[string]map[int]string
	backends []backend
	// clusterIPs are the addresses of Services, once an API server has given them.
	clusterIPs map[string]netip.Addr
	// listeners are those of Gateways and ListenerSets, by the namespace/name of the Gateway.
	listeners map[string][]listener
}

// proxy is a workload that serves Gateways, or that is in the mesh.
type proxy struct {
	namespace string
	// service is the Service of a gateway; "client" has none.
	service string
	ip      netip.Addr
	labels  map[string]string
	// gateways are those that it serves, by namespace/name; without any it is a sidecar.
	gateways []string
}

// client is the name of workloads with a sidecar.
const clientName = "client"

func (p *proxy) sidecar() bool { return len(p.gateways) == 0 }

func (p *proxy) pod() string { return p.service + "-0" }

// backend is that of a Service.
type backend struct {
	ip      netip.Addr
	service string
	ports   map[int]string
}

// addresses hands out those of a range.
type addresses struct{ last netip.Addr }

func (a *addresses) next() netip.Addr {
	a.last = a.last.Next()
	return a.last
}

// readInputs reads all files of a directory.
func readInputs(dir string, authority *authority) ([]*input, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	pods, backends := &addresses{podRange.Addr()}, &addresses{backendRange.Addr()}
	var out []*input
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		in := &input{name: strings.TrimSuffix(filepath.Base(f), ".yaml"), services: map[string]map[int]string{},
			listeners: map[string][]listener{}}
		objects, err := kubeapi.Decode(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		for _, o := range objects {
			if o.GetKind() == "GatewayClass" {
				continue // both control planes make theirs
			}
			in.rename(o)
			in.objects = append(in.objects, o)
		}
		if err := in.read(pods); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		if err := in.add(backends, authority); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		out = append(out, in)
	}
	return out, nil
}

// rename gives an object's namespaces the input's name, wherever it names some.
func (in *input) rename(o *unstructured.Unstructured) {
	if o.GetNamespace() == "" && o.GetKind() != "Namespace" {
		o.SetNamespace("default")
	}
	if o.GetKind() == "Namespace" {
		o.SetName(in.namespace(o.GetName()))
	}
	o.SetUID("")
	o.SetName(strings.ToLower(o.GetName())) // some are no names that an API server takes
	in.renameIn(o.Object)
}

func (in *input) namespace(name string) string { return in.name + "-" + name }

func (in *input) renameIn(value any) {
	switch v := value.(type) {
	case []any:
		for _, e := range v {
			in.renameIn(e)
		}
	case map[string]any:
		for key, inner := range v {
			text, isText := inner.(string)
			switch {
			case isText && (key == "namespace" || key == "kubernetes.io/metadata.name"):
				v[key] = in.namespace(text)
			case isText && key == "value" && strings.Contains(text, ".svc."):
				parts := strings.Split(text, ".")
				v[key] = parts[0] + "." + in.namespace(parts[1]) + ".svc.cluster.local"
			default:
				in.renameIn(inner)
			}
		}
	}
}

// original is the name of one of the input's namespaces in its file.
func (in *input) original(namespace string) string { return strings.TrimPrefix(namespace, in.name+"-") }

// read finds routes, listeners and the workloads of Gateways.
func (in *input) read(pods *addresses) error {
	for _, o := range in.objects {
		at := o.GetNamespace() + "/" + o.GetName()
		switch {
		case o.GetKind() == "Gateway" && o.GroupVersionKind().Group == gatewayGroup:
			var g gateway
			if err := into(o, &g); err != nil {
				return err
			}
			in.listeners[at] = append(in.listeners[at], g.Spec.Listeners...)
			if service := g.service(o.GetName()); service != "" {
				in.proxyOf(o, service, at, pods)
			}
		case o.GetKind() == "ListenerSet":
			var set listenerSet
			if err := into(o, &set); err != nil {
				return err
			}
			parent := set.Spec.ParentRef
			of := or(parent.Namespace, o.GetNamespace()) + "/" + parent.Name
			in.listeners[of] = append(in.listeners[of], set.Spec.Listeners...)
		case strings.HasSuffix(o.GetKind(), "Route"):
			r := &route{}
			if err := into(o, r); err != nil {
				return err
			}
			in.routes = append(in.routes, r)
		}
	}
	// Routes of the mesh have their own namespace's clients, and those of their parents'.
	var clients []string
	for _, r := range in.routes {
		for _, p := range append(r.parents("Service"), r.parents("ServiceEntry")...) {
			clients = append(clients, r.Metadata.Namespace, or(p.Namespace, r.Metadata.Namespace))
		}
	}
	slices.Sort(clients)
	for _, namespace := range slices.Compact(clients) {
		in.proxies = append(in.proxies, &proxy{
			namespace: namespace, service: clientName, ip: pods.next(), labels: map[string]string{"app": clientName},
		})
	}
	return nil
}

// proxyOf adds a Gateway to the workload of a Service of its namespace, which it makes if it is the first.
func (in *input) proxyOf(o *unstructured.Unstructured, service, gateway string, pods *addresses) {
	i := slices.IndexFunc(in.proxies, func(p *proxy) bool { return p.namespace == o.GetNamespace() && p.service == service })
	if i < 0 {
		p := &proxy{namespace: o.GetNamespace(), service: service, ip: pods.next(), labels: map[string]string{"app": service}}
		if service == o.GetName()+"-istio" {
			p.labels["gateway.networking.k8s.io/gateway-name"] = o.GetName()
		}
		in.proxies, i = append(in.proxies, p), len(in.proxies)
	}
	in.proxies[i].gateways = append(in.proxies[i].gateways, gateway)
}

// protocols of the ports of Services, by the kind of the route that names them.
var protocols = map[string]string{"HTTPRoute": "http", "GRPCRoute": "grpc", "TCPRoute": "tcp", "TLSRoute": "tls"}

// port makes a Service with a port, if it is not there; its first protocol stays.
func (in *input) port(namespace, name string, number int, protocol string) {
	if isMissing(name) {
		return
	}
	at := namespace + "/" + name
	if in.services[at] == nil {
		in.services[at] = map[int]string{80: "http"}
	}
	if number > 0 && in.services[at][number] == "" {
		in.services[at][number] = protocol
	}
}

// add makes what the file's objects refer to: namespaces, Services with their backends, Pods, Secrets, ConfigMaps.
func (in *input) add(backends *addresses, a *authority) error {
	namespaces, there := map[string]bool{}, map[string]bool{}
	for _, o := range in.objects {
		if o.GetKind() == "Namespace" {
			there[o.GetName()] = true
			continue
		}
		namespaces[o.GetNamespace()] = true
		there[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = true
		if o.GetKind() == "Service" {
			ports, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports")
			for _, p := range ports {
				m, _ := p.(map[string]any)
				number, _ := m["port"].(int64)
				in.port(o.GetNamespace(), o.GetName(), int(number), strings.Split(fmt.Sprint(m["name"]), "-")[0])
			}
		}
	}
	in.objects = slices.DeleteFunc(in.objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Service" })
	for _, r := range in.routes {
		for _, ref := range r.services() {
			in.port(ref.Namespace, ref.Name, ref.Port, protocols[r.Kind])
		}
	}
	made := &maker{authority: a}
	for _, o := range in.objects {
		in.refer(o.GetNamespace(), o.Object, func(kind, namespace, name string) {
			namespaces[namespace] = true
			if at := kind + " " + namespace + "/" + name; !there[at] && !isMissing(name) {
				there[at] = true
				made.add(kind, namespace, name)
			}
		})
	}
	for _, at := range slices.Sorted(maps.Keys(in.services)) {
		namespace, name, _ := strings.Cut(at, "/")
		namespaces[namespace] = true
		b := backend{backends.next(), at, in.services[at]}
		in.backends = append(in.backends, b)
		made.service(namespace, name, b.ports, b.ip)
	}
	for _, p := range in.proxies {
		if p.sidecar() {
			made.client(p, slices.Sorted(maps.Keys(namespaces)))
			continue
		}
		ports := map[int]bool{80: true}
		for _, g := range p.gateways {
			for _, l := range in.listeners[g] {
				ports[l.Port] = true
			}
		}
		made.proxy(p, slices.Sorted(maps.Keys(ports)))
	}
	var first []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		if name != "" && !there[name] {
			first = append(first, namespaceObject(name, strings.Split(in.original(name), "-")[0]))
		}
	}
	objects, err := made.objects()
	in.objects = append(append(first, objects...), in.objects...)
	return err
}

// refer calls f for each Secret, ConfigMap and Service of a policy that an object of a namespace refers to.
func (in *input) refer(namespace string, value any, f func(kind, namespace, name string)) {
	switch v := value.(type) {
	case []any:
		for _, e := range v {
			in.refer(namespace, e, f)
		}
	case map[string]any:
		for key, inner := range v {
			kind := map[string]string{"certificateRefs": "Secret", "clientCertificateRef": "Secret", "caCertificateRefs": "ConfigMap"}[key]
			if refs, ok := inner.([]any); ok && (kind != "" || key == "targetRefs") {
				for _, r := range refs {
					in.referOne(namespace, kind, r, f)
				}
			} else if kind != "" {
				in.referOne(namespace, kind, inner, f)
			} else {
				in.refer(namespace, inner, f)
			}
		}
	}
}

func (in *input) referOne(namespace, kind string, value any, f func(kind, namespace, name string)) {
	m, _ := value.(map[string]any)
	text := func(key, otherwise string) string {
		if s, ok := m[key].(string); ok {
			return s
		}
		return otherwise
	}
	kind, namespace = text("kind", kind), text("namespace", namespace)
	switch kind {
	case "Secret", "ConfigMap":
		f(kind, namespace, text("name", ""))
	case "Service":
		in.port(namespace, text("name", ""), 0, "")
	}
}

func or[T comparable](a, b T) T {
	var zero T
	if a == zero {
		return b
	}
	return a
}
