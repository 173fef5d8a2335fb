// Package ondemand tests sidecars that hold only what they call, and those that are sent all virtual hosts as resources
// of their own: real services, real Envoys, redirected connections.
package ondemand

import (
	"fmt"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/tests/e2e/internal/hostmesh"
)

// Addresses. The outside host is no part of the mesh and has the address of a service that does not exist at first.
// TestMain makes the user root of namespaces of its own.
func TestMain(m *testing.M) { userns.Main(m) }

const (
	clientIP  = "198.18.1.1"
	v1IP      = "198.18.1.2"
	v2IP      = "198.18.1.3"
	outsideIP = "198.18.1.4"

	serverVIP  = "198.19.0.1"
	greeterVIP = "198.19.0.2"
	sharedVIP  = "198.19.0.3"
	farVIP     = "198.19.0.4"
	routedVIP  = "198.19.0.5"
	laterVIP   = "198.19.0.250"

	// numbered is how many services svc-0, svc-1, ... there are.
	numbered = 60
)

func numberedVIP(i int) string { return fmt.Sprintf("198.19.1.%d", i+1) }

func numberedName(i int) string { return fmt.Sprintf("svc-%d", i) }

// client is the identity that servers see.
const client = "spiffe://cluster.local/ns/apps/sa/client"

// service is a Service whose ports are given in YAML's flow form.
func service(namespace, name, vip, ports string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s}\nspec: {selector: {app: server}, clusterIP: "+
		"%s, ports: [%s]}\n", name, namespace, vip, ports)
}

// pod is a workload with a sidecar.
func pod(namespace, name, app, version, ip, annotations string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {app: %s, version: %s, security.istio.io/tlsMode: istio}, annotations: {%s}}
spec: {serviceAccountName: %s, containers: [{name: app, image: app}]}
status: {phase: Running, podIP: %s, podIPs: [{ip: %s}], conditions: [{type: Ready, status: "True"}]}
`, name, namespace, app, version, annotations, name, ip, ip)
}

const strict = `---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
`

// policy is a mesh configuration with an outbound traffic policy, and more of it in YAML.
func policy(mode, more string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    "+
		"outboundTrafficPolicy: {mode: %s}\n    %s\n", mode, more)
}

const (
	httpPort = "{name: http, port: 80, targetPort: 8080}"
	echoPort = "{name: tcp-echo, port: 9090}"

	later = "later.yaml"
)

// laterService is at an address that also the outside host has.
func laterService() string { return service("apps", "later", laterVIP, httpPort+", "+echoPort) }

// routes is a VirtualService of the service "routed": who sends the header gets v2, all others by weight.
func routes(v1, v2 int, name string) string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: routed, namespace: apps}
spec: {host: routed, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: routed, namespace: apps}
spec:
  hosts: [routed]
  http:
  - match: [{headers: {x-version: {exact: v2}}}]
    route: [{destination: {host: routed, subset: v2}}]
  - route: [{destination: {host: routed, subset: v1}, weight: %d}, {destination: {host: routed, subset: v2}, weight: %d}]
    headers: {response: {set: {x-route: %s}}}
`, v1, v2, name)
}

// fixture is one client, two servers, and a host that is no part of the mesh.
type fixture struct {
	*hostmesh.Mesh
	client, v1, v2 *hostmesh.Proxy
	outside        *hostmesh.Host
}

// options of a fixture.
type options struct {
	xdsServers int
	// annotations of the client's Pod.
	annotations string
	// mesh is its configuration.
	mesh string
	// env of the client's agent.
	env []string
}

func newFixture(t *testing.T, o options) *fixture {
	t.Helper()
	hostmesh.Needs(t)
	var mesh strings.Builder
	mesh.WriteString(strict)
	mesh.WriteString(service("apps", "server", serverVIP, strings.Join([]string{
		httpPort, echoPort, "{name: grpc, port: 7070}", "{name: tcp-greet, port: 9091}",
		"{name: sniffed-http, port: 81, targetPort: 8080}", "{name: sniffed-tcp, port: 9092, targetPort: 9090}",
	}, ", ")))
	// On port 8000 one service speaks HTTP and another waits for nobody to speak first.
	mesh.WriteString(service("apps", "shared", sharedVIP, "{name: http, port: 8000, targetPort: 8080}"))
	mesh.WriteString(service("apps", "greeter", greeterVIP, "{name: tcp-greet, port: 8000, targetPort: 9091}"))
	mesh.WriteString(service("apps", "routed", routedVIP, httpPort))
	mesh.WriteString(farService())
	for i := range numbered {
		mesh.WriteString(service("apps", numberedName(i), numberedVIP(i), httpPort+", "+echoPort))
	}
	mesh.WriteString(pod("apps", "v1", "server", "v1", v1IP, ""))
	mesh.WriteString(pod("apps", "v2", "server", "v2", v2IP, ""))
	mesh.WriteString(pod("apps", "client", "client", "v1", clientIP, o.annotations))
	if o.mesh == "" {
		o.mesh = policy("ALLOW_ANY", "")
	}
	f := &fixture{Mesh: hostmesh.New(t, max(o.xdsServers, 1),
		map[string]string{"mesh.yaml": mesh.String(), "policy.yaml": o.mesh, "routes.yaml": routes(75, 25, "first")})}
	for ip, proxy := range map[string]**hostmesh.Proxy{clientIP: &f.client, v1IP: &f.v1, v2IP: &f.v2} {
		name := map[string]string{clientIP: "client", v1IP: "v1", v2IP: "v2"}[ip]
		h := f.Plug(name, ip)
		h.Redirect()
		if ip != clientIP {
			serve(t, h, name)
		}
		who := hostmesh.Workload{Namespace: "apps", Name: name}
		if ip == clientIP {
			who.Env = o.env
		}
		*proxy = f.Join(h, who)
	}
	f.outside = f.Plug("outside", outsideIP, laterVIP)
	serve(t, f.outside, "outside")
	serveHTTP(f.outside.Listen(80), "outside")
	hostmesh.WaitReady(t, f.client, f.v1, f.v2)
	return f
}

// check asserts at the end of every test that no proxy has rejected anything.
func (f *fixture) check() {
	for _, p := range []*hostmesh.Proxy{f.client, f.v1, f.v2} {
		p.AssertNothingRejected()
	}
}

// farService is of another namespace, and its endpoint is a Pod of "apps".
func farService() string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: else}
spec: {clusterIP: %s, ports: [%s]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far-1, namespace: else, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [%s], conditions: {ready: true}, targetRef: {kind: Pod, namespace: apps, name: v1}}]
`, farVIP, httpPort, v1IP)
}
