package whole

import (
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

// TestBesideIstio tells what a Gateway of Istio's API takes from one of the Gateway API that the same workloads serve.
func TestBesideIstio(t *testing.T) {
	const mesh = `
{apiVersion: v1, kind: Service, metadata: {name: ingress, namespace: infra}, spec: {selector: {app: ingress}, ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: ingress, namespace: infra, labels: {app: ingress, istio: gw}},
spec: {containers: [{name: istio-proxy, image: a}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: infra}, spec: {selector: {app: ingress}, ports: [{name: http, port: 80}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: api, namespace: infra}, spec: {gatewayClassName: istio,
addresses: [{type: Hostname, value: ingress}], listeners: [{name: bad, port: 15021, protocol: HTTP}, {name: http, port: 80, protocol: HTTP},
{name: tls, port: 443, protocol: TLS, hostname: a.com, tls: {mode: Passthrough}}, {name: udp, port: 81, protocol: UDP},
{name: tcp, port: 82, protocol: TCP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r, namespace: infra}, spec: {parentRefs: [{name: api}],
hostnames: [both.com, own.com], rules: [{backendRefs: [{name: web, port: 80}]}]}}
---
{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: old, namespace: edge}, spec: {selector: {SELECTOR}, servers: [SERVERS]}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: vs, namespace: infra}, spec: {hosts: [both.com], gateways: [edge/old],
exportTo: [EXPORT], http: [{route: [{destination: {host: web, port: {number: 80}}}]}],
tcp: [{route: [{destination: {host: web, port: {number: 80}}}]}]}}
`
	const (
		listener = "ListenerTaken Gateway.gateway.networking.k8s.io infra/api spec.listeners"
		route    = "RouteShadowed HTTPRoute infra/r spec.hostnames"
		simple   = "tls: {mode: SIMPLE, credentialName: cert}, "
	)
	server := func(port, protocol, rest string) string {
		return "{port: {number: " + port + ", name: a, protocol: " + protocol + "}, " + rest + "}"
	}
	for name, tc := range map[string]struct{ selector, servers, export, want string }{
		"a host of both":             {"istio: gw", server("80", "HTTP", "hosts: [both.com]"), "'*'", route},
		"a host by a wildcard":       {"istio: gw", server("80", "HTTP2", "hosts: ['infra/*.com']"), "'*'", route},
		"no workload of both":        {"istio: other", server("80", "HTTP", "hosts: [both.com]"), "'*'", ""},
		"workloads of its labels":    {"app: ingress", server("80", "HTTP", "hosts: [both.com]"), "'*'", route},
		"another host":               {"istio: gw", server("80", "HTTP", "hosts: [other.com]"), "'*'", ""},
		"hosts of another namespace": {"istio: gw", server("80", "HTTP", "hosts: [./both.com]"), "'*'", ""},
		"another port":               {"istio: gw", server("8080", "HTTP", "hosts: [both.com]"), "'*'", ""},
		"another protocol":           {"istio: gw", server("80", "TCP", "hosts: ['*']"), "'*'", listener + "[1]"},
		"TCP with routes":            {"istio: gw", server("82", "TCP", "hosts: ['*']"), "'*'", listener + "[4]"},
		"TCP with routes of nobody":  {"istio: gw", server("82", "TCP", "hosts: ['*']"), "other", ""},
		"beside UDP":                 {"istio: gw", server("81", "TCP", "hosts: ['*']"), "'*'", ""},
		"a server name":              {"istio: gw", server("443", "HTTPS", simple+"hosts: [a.com]"), "'*'", listener + "[2]"},
		"another server name":        {"istio: gw", server("443", "HTTPS", simple+"hosts: ['*.com']"), "'*'", ""},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.NewReplacer("SELECTOR", tc.selector, "SERVERS", tc.servers, "EXPORT", tc.export).Replace(mesh)
			var found []string
			for _, m := range analyzed(t, Config{}, nil, text).Messages {
				if m.Code == finding.ListenerTaken || m.Code == finding.RouteShadowed {
					found = append(found, short([]finding.Finding{m})...)
					if !strings.Contains(m.Reason, "Gateway edge/old of networking.istio.io") || !strings.HasSuffix(m.Reason, "and wins") {
						t.Error(m.Reason)
					}
				}
			}
			if text := strings.Join(found, ", "); text != tc.want {
				t.Errorf("found %q, want %q", text, tc.want)
			}
		})
	}
}
