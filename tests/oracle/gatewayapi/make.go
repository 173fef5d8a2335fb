package gatewayapi

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/tests/internal/kubeapi"
)

// maker writes objects.
type maker struct {
	authority *authority
	text      strings.Builder
	err       error
}

func (m *maker) objects() ([]*unstructured.Unstructured, error) {
	objects, err := kubeapi.Decode([]byte(m.text.String()))
	return objects, or(m.err, err)
}

// add makes a Secret with a certificate and a key, or a ConfigMap with the certificate of an authority. Those that are
// called malformed have none.
func (m *maker) add(kind, namespace, name string) {
	switch {
	case kind == "ConfigMap" && name == "malformed":
		fmt.Fprintf(&m.text, "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: %s}, data: {not-ca.crt: hello}}\n", name,
			namespace)
	case kind == "ConfigMap":
		ca := string(m.authority.pem)
		if strings.Contains(name, "malformed") {
			ca = "hello"
		}
		fmt.Fprintf(&m.text, "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: %s}, data: {ca.crt: %q}}\n", name, namespace,
			ca)
	default:
		chain, key, err := m.authority.issue(namespace+"/"+name, "*.example", "*.example.com", "*.domain.example")
		if name == "malformed" {
			chain, key = []byte("Hello world"), []byte("Hello world")
		}
		m.err = or(m.err, err)
		code := base64.StdEncoding.EncodeToString
		fmt.Fprintf(&m.text, `---
{apiVersion: v1, kind: Secret, metadata: {name: %s, namespace: %s}, data: {tls.crt: %s, tls.key: %s, ca.crt: %s}}
`, name, namespace, code(chain), code(key), code(m.authority.pem))
	}
}

// service makes a Service with one backend.
func (m *maker) service(namespace, name string, protocols map[int]string, backend netip.Addr) {
	var ports, at []string
	for _, n := range slices.Sorted(maps.Keys(protocols)) {
		ports = append(ports, fmt.Sprintf("{name: %s-%d, port: %d, targetPort: %d}", protocols[n], n, n, n+portOffset))
		at = append(at, fmt.Sprintf("{name: %s-%d, port: %d, protocol: TCP}", protocols[n], n, n+portOffset))
	}
	fmt.Fprintf(&m.text, `---
{apiVersion: v1, kind: Service, metadata: {name: %[1]s, namespace: %[2]s}, spec: {ports: [%[3]s]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: %[2]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
endpoints: [{addresses: [%[4]s], conditions: {ready: true}}]
ports: [%[5]s]
`, name, namespace, strings.Join(ports, ", "), backend, strings.Join(at, ", "))
}

// proxy makes the Service and the Pod of a gateway, which serves ports.
func (m *maker) proxy(p *proxy, numbers []int) {
	var ports, at, labels []string
	for _, n := range numbers {
		ports = append(ports, fmt.Sprintf("{name: p-%d, port: %d}", n, n))
		at = append(at, fmt.Sprintf("{name: p-%d, port: %d, protocol: TCP}", n, n))
	}
	for _, k := range slices.Sorted(maps.Keys(p.labels)) {
		labels = append(labels, fmt.Sprintf("%s: %s", k, p.labels[k]))
	}
	m.pod(p, strings.Join(labels, ", "))
	fmt.Fprintf(&m.text, `---
{apiVersion: v1, kind: Service, metadata: {name: %[1]s, namespace: %[2]s}, spec: {selector: {%[3]s}, ports: [%[4]s]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: %[2]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
endpoints: [{addresses: [%[6]s], conditions: {ready: true}, targetRef: {kind: Pod, name: %[5]s, namespace: %[2]s}}]
ports: [%[7]s]
`, p.service, p.namespace, strings.Join(labels, ", "), strings.Join(ports, ", "), p.pod(), p.ip, strings.Join(at, ", "))
}

func (m *maker) pod(p *proxy, labels string) {
	fmt.Fprintf(&m.text, `---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: %[1]s, namespace: %[2]s}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[3]s, namespace: %[2]s, labels: {%[4]s}}
spec: {serviceAccountName: %[1]s, containers: [{name: istio-proxy, image: none}]}
status: {phase: Running, podIP: %[5]s, podIPs: [{ip: %[5]s}], conditions: [{type: Ready, status: "True"}]}
`, p.service, p.namespace, p.pod(), labels, p.ip)
}

// client makes a Pod with a sidecar, which has the input's namespaces alone: others have policies whose credentials
// Envoy would wait for.
func (m *maker) client(p *proxy, namespaces []string) {
	m.pod(p, "app: "+p.service)
	var hosts []string
	for _, n := range namespaces {
		hosts = append(hosts, fmt.Sprintf("%q", n+"/*"))
	}
	fmt.Fprintf(&m.text, `---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: %s}
spec: {egress: [{hosts: [%s]}]}
`, p.namespace, strings.Join(hosts, ", "))
}

// namespaceObject has the label that the inputs' selectors look for.
func namespaceObject(name, part string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"istio.io/test-name-part": part}},
	}}
}
