// Package decisions asks Istio and Fairlead for the filters that enforce policies, and one Envoy for what the filters
// of both decide about the same requests.
package decisions

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"fairlead.dev/tests/internal/policygen"
)

// Mesh is a configuration of the mesh, and the sets that are asked about under it.
type Mesh struct {
	TrustDomain string
	Aliases     []string
	// Providers are those of CUSTOM policies.
	Providers []Provider
	Sets      []policygen.Set
	// Paths is pathNormalization's; empty for the default.
	Paths string
}

// Provider is an extension provider of the mesh's configuration.
type Provider struct {
	// Name is what policies say, Service its host, without the namespace.
	Name, Service string
	HTTP          bool
}

// Ports of the service of a provider, of every workload, and where TCP is spoken.
const (
	providerPort = 9191
	httpPort     = 8080
	tcpPort      = 9000
)

// providersNamespace has the services of the providers.
const providersNamespace = "providers"

// drawnProviders are those that drawn policies name.
var drawnProviders = []Provider{
	{policygen.GRPCProvider, "grpc.providers.example", false}, {policygen.HTTPProvider, "http.providers.example", true},
	{policygen.LongerProvider, "two.providers.example", false},
}

// inputProviders are those of the inputs of Istio's tests, of which another one is missing.
var inputProviders = []Provider{{"default", "default.providers.example", false}}

// Config is the text of the mesh's configuration.
func (m Mesh) Config() string {
	var b strings.Builder
	fmt.Fprintf(&b, "trustDomain: %s\nrootNamespace: %s\n", m.TrustDomain, policygen.RootNamespace)
	fmt.Fprintf(&b, "trustDomainAliases: [%s]\n", strings.Join(m.Aliases, ", "))
	if m.Paths != "" {
		fmt.Fprintf(&b, "pathNormalization: {normalization: %s}\n", m.Paths)
	}
	b.WriteString("defaultServiceExportTo: [\".\"]\ndefaultConfig: {}\nextensionProviders:\n")
	for _, p := range m.Providers {
		kind, more := "envoyExtAuthzGrpc", ""
		if p.HTTP {
			kind, more = "envoyExtAuthzHttp", `, includeRequestHeadersInCheck: [x-ext-authz], headersToUpstreamOnAllow: [x-ext-added]`
		}
		fmt.Fprintf(&b, "- name: %s\n  %s: {service: %s/%s, port: %d, timeout: 5s%s}\n", p.Name, kind, providersNamespace, p.Service, providerPort,
			more)
	}
	return b.String()
}

// Services are the objects that make the providers and the workloads known, by the name of a file.
func (m Mesh) Services() map[string]string {
	files := map[string]string{}
	var b strings.Builder
	for _, p := range m.Providers {
		fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: %s}
spec:
  hosts: [%s]
  exportTo: ["*"]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: %s, protocol: %s}]
  endpoints: [{address: 10.63.0.1}]
`, p.Name, providersNamespace, p.Service, providerPort, map[bool]string{false: "grpc", true: "http"}[p.HTTP],
			map[bool]string{false: "GRPC", true: "HTTP"}[p.HTTP])
	}
	files["providers"] = b.String()
	for _, s := range m.Sets {
		files[s.Namespace] = workload(s) + service(s)
	}
	return files
}

// workload is a machine, so that no Kubernetes is needed.
func workload(s policygen.Set) string {
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		labels = append(labels, name+": "+s.Labels[name])
	}
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: app, namespace: %s}
spec: {address: %s, serviceAccount: default, labels: {%s}}
---
`, s.Namespace, s.Address, strings.Join(labels, ", "))
}

func service(s policygen.Set) string {
	if s.Gateway {
		return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: %s}
spec:
  selector: {set: %[1]s}
  servers:
  - {port: {number: %d, name: http, protocol: HTTP}, hosts: ["*"]}
  - {port: {number: %d, name: tcp, protocol: TCP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: gw, namespace: %[1]s}
spec:
  hosts: ["*"]
  gateways: [gw]
  http: [{route: [{destination: {host: back.%[1]s.example, port: {number: %[2]d}}}]}]
  tcp: [{match: [{port: %[3]d}], route: [{destination: {host: back.%[1]s.example, port: {number: %[3]d}}}]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: back, namespace: %[1]s}
spec:
  hosts: [back.%[1]s.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %[2]d, name: http, protocol: HTTP}, {number: %[3]d, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.62.0.1}]
`, s.Namespace, httpPort, tcpPort)
	}
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: app, namespace: %s}
spec:
  hosts: [app.%[1]s.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}, {number: %d, name: tcp, protocol: TCP}]
  workloadSelector: {labels: {set: %[1]s}}
`, s.Namespace, httpPort, tcpPort)
}
