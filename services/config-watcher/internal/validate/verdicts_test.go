package validate

import (
	"regexp"
	"strings"
	"testing"
)

// checkVerdict checks the result of an object: want is a regular expression for the problems, or after "~" for a
// warning of an accepted object; empty means accepted.
func checkVerdict(t *testing.T, yaml, want string) {
	t.Helper()
	o, got := judge(t, yaml)
	if warning, ok := strings.CutPrefix(want, "~"); ok && got == "" {
		if got := o.Warnings.Error(); !regexp.MustCompile("(?m)" + warning).MatchString(got) {
			t.Errorf("warnings %s\nwant %s", got, warning)
		}
		return
	}
	if want == "" && got != "" || strings.HasPrefix(want, "~") {
		t.Errorf("refused: %s", got)
	} else if !regexp.MustCompile(want).MatchString(got) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestIstiosVerdicts has objects about services, workloads and extensions, and Istio's verdict on them.
func TestIstiosVerdicts(t *testing.T) {
	se := func(spec string) string { return of("ServiceEntry", "{"+spec+"}") }
	const (
		port = "ports: [{number: 80, name: http, protocol: HTTP}]"
		tcp  = "ports: [{number: 80, name: tcp, protocol: TCP}]"
	)
	labelled := func(labels, spec string) string {
		return strings.Replace(se(spec), "namespace: apps", "namespace: apps, labels: {"+labels+"}", 1)
	}
	ingress := func(port, more string) string {
		return of("Sidecar", "{ingress: [{port: {"+port+"}"+more+"}]}")
	}
	egress := func(listener string) string { return of("Sidecar", "{egress: [{"+listener+"}]}") }
	proxy := func(to string) string {
		return of("Sidecar", "{outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {"+to+"}}}")
	}
	probe := func(p string) string { return of("WorkloadGroup", "{template: {}, probe: {"+p+"}}") }
	ext := func(kind, spec string) string {
		return strings.Replace(of("WasmPlugin", "{"+spec+"}"), "kind: WasmPlugin", "kind: "+kind, 1)
	}
	tel := func(spec string) string {
		return "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: a}\nspec: {" + spec + "}"
	}
	for _, c := range []struct{ name, yaml, want string }{
		{"no ports", se("hosts: [a.com], resolution: DNS"), "~spec: has no ports"},
		{"all workloads", se("hosts: [a.com], resolution: STATIC, workloadSelector: {}, " + port), "~workloadSelector: selects all workloads"},
		{"part of a label", se("hosts: ['*-a.example.com'], " + port), `~hosts\[0\]: has no effect: a wildcard that is a part`},
		{"part at the end", se("hosts: ['a*.example.com'], " + port), `hosts\[0\]: .*not a valid host`},
		{"a number as the last part", se("hosts: [a.123], " + port), "the last part no number"},
		{"an address", se("hosts: [1.2.3.4], " + port), "not a valid host"},
		{"underscore", se("hosts: [a_b.com], " + port), "not a valid host"},
		{"one host twice", se("hosts: [a.com, A.com], " + port), `~hosts\[1\]: same host as hosts\[0\]`},
		{"several hosts of bytes", se("hosts: [a.com, b.com], resolution: DNS, " + tcp), "must say which one they want"},
		{"several hosts of bytes, to where they go", se("hosts: [a.com, b.com], " + tcp), ""},
		{"several hosts of no protocol", se("hosts: [a.com, b.com], resolution: STATIC, ports: [{number: 80, name: http}]"),
			"must say which one they want"},
		{"name of a port", se("hosts: [a.com], ports: [{number: 80, name: a_b}]"), "not a valid port name"},
		{"proxy protocol", se("hosts: [a.com], ports: [{number: 80, name: a, protocol: HTTP_PROXY}]"), ""},
		{"dynamic", se("hosts: ['*.a.com'], resolution: DYNAMIC_DNS, location: MESH_INTERNAL, " + port), ""},
		{"dynamic with addresses", se("hosts: ['*.a.com'], resolution: DYNAMIC_DNS, addresses: [10.0.0.1], " + port),
			"spec.addresses: resolution DYNAMIC_DNS"},
		{"dynamic with endpoints", se("hosts: ['*.a.com'], resolution: DYNAMIC_DNS, endpoints: [{address: 1.1.1.1}], " + port),
			"endpoints have no effect"},
		{"dynamic with workloads", se("hosts: ['*.a.com'], resolution: DYNAMIC_DNS, workloadSelector: {labels: {a: b}}, " + port),
			"~workloadSelector: has no effect"},
		{
			"dynamic with another port", se(
				"hosts: ['*.a.com'], resolution: DYNAMIC_DNS, ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]"),
			"~targetPort: has no effect"},
		{"dynamic bytes", se("hosts: ['*.a.com'], resolution: DYNAMIC_DNS, " + tcp), "needs a protocol whose clients name the host"},
		{"dynamic without protocol", se("hosts: ['*.a.com'], resolution: DYNAMIC_DNS, ports: [{number: 80, name: http}]"),
			"needs a protocol whose clients name the host"},
		{"dynamic through a waypoint",
			labelled("istio.io/use-waypoint: w", "hosts: ['*.a.com'], resolution: DYNAMIC_DNS, location: MESH_INTERNAL, "+port),
			"use-waypoint.*not possible"},
		{"through a waypoint", labelled("istio.io/use-waypoint: w", "hosts: [a.com], "+port), "~use-waypoint.*has no effect"},
		{"wildcard without endpoints", se("hosts: ['*.a.com'], resolution: STATIC, " + port), `~hosts\[0\]: .*has nowhere to go`},
		{"wildcard looked up for workloads", se("hosts: ['*.a.com'], resolution: DNS, workloadSelector: {labels: {a: b}}, " + port),
			"cannot be looked up in DNS"},
		{"no place", se("hosts: [a.com], resolution: STATIC, endpoints: [{address: 1.1.1.1, locality: 'a/*/b'}], " + port),
			"~locality: is no place"},
		{"no account", of("WorkloadEntry", "{address: 1.1.1.1, serviceAccount: A B}"), "~serviceAccount: no workload proves to be it"},
		{"no name", of("WorkloadEntry", "{address: a_b.c}"), "neither an IP address nor a DNS name"},
		{"no certificate", se("hosts: [a.com], subjectAltNames: [''], " + port), `~subjectAltNames\[0\]: matches no certificate`},
		{"own namespace twice", se("hosts: [a.com], exportTo: [., apps], " + port), `exportTo\[1\]: "apps": listed twice`},
		{"no allocation", labelled("networking.istio.io/enable-autoallocate-ip: maybe", "hosts: [a.com], "+port), "~neither true nor false"},
		{"traffic distribution", annotated("{networking.istio.io/traffic-distribution: Nearest}"), `~unknown traffic distribution "Nearest"`},

		{"group without a template", of("WorkloadGroup", "{}"), "spec.template: missing"},
		{"group with an address", of("WorkloadGroup", "{template: {address: 1.1.1.1, labels: {a b: c}}}"), ""},
		{"group of bad labels", of("WorkloadGroup", "{template: {}, metadata: {labels: {a b: c}}}"), "not a valid label name"},
		{"probe of nothing", probe(""), "spec.probe: no way to probe"},
		{"probe", probe("httpGet: {port: 80, scheme: HTTPS, httpHeaders: [{name: a-b}]}"), ""},
		{"probe of no port", probe("tcpSocket: {port: 0}"), "tcpSocket.port: 0: not a port"},
		{"probe of a scheme", probe("httpGet: {port: 80, scheme: http}"), "unknown scheme"},
		{"probe with a header", probe("httpGet: {port: 80, httpHeaders: [{name: a_b}]}"), "not a valid header name"},
		{"probe by nothing", probe("exec: {}"), "exec.command: missing"},
		{"probe by gRPC", probe("grpc: {port: 7}"), "not a way to probe"},
		{"probe, negative", probe("exec: {command: [a]}, periodSeconds: -1"), "periodSeconds: -1: negative"},

		{"ports of nobody", of("PeerAuthentication", "{selector: {matchLabels: {a: b}}, portLevelMtls: {}}"), "portLevelMtls: names no port"},
		{"a label that none has", of("PeerAuthentication", "{selector: {matchLabels: {a b: c}}}"), "~selects nothing"},
		{"a selector of all", of("PeerAuthentication", "{selector: {}}"), "~selector: selects all workloads"},
		{"processes for all", "apiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata: {name: a}\nspec: {selector: {}}",
			"~selector: selects all workloads"},

		{"egress proxy without a port", proxy("host: a.b.com"), "egressProxy.port: missing"},
		{"egress proxy by a short name", proxy("host: a, port: {number: 80}"), "~egressProxy.host: a short name"},
		{"egress proxy under a wildcard", proxy("host: '*.a', port: {number: 80}"), "not a DNS name"},
		{"ingress for all", of("Sidecar", "{workloadSelector: {}, ingress: [{port: {number: 80, protocol: HTTP}}]}"),
			"~workloadSelector: selects all workloads"},
		{"ingress of datagrams", ingress("number: 1, protocol: UDP, name: u", ""), "~datagrams pass the proxy by"},
		{"ingress of a proxy", ingress("number: 1, protocol: HTTP_PROXY", ""), ""},
		{"ingress, name of the port", ingress("number: 1, protocol: HTTP, name: a_b", ""), "not a valid port name"},
		{"ingress to a port", ingress("number: 1, protocol: HTTP", ", defaultEndpoint: ':80'"), ""},
		{"ingress to another loopback address", ingress("number: 1, protocol: HTTP", ", defaultEndpoint: '127.0.0.2:80'"),
			"only to its own workload"},
		{"egress, short name", egress("hosts: [./a]"), "short name"},
		{"egress, no name", egress("hosts: [b/a_b.c]"), "not a valid host"},
		{"egress, no namespace", egress("hosts: ['B/*']"), "~no namespace is called so"},
		{"egress, no namespace at all", egress("hosts: ['~B_/*']"), "not a namespace before the slash"},
		{"egress, bound nowhere", egress("bind: 127.0.0.1, hosts: ['*/*']"), "~bind: has no effect"},
		{"egress, a socket's port", egress("bind: 'unix:///a', port: {number: 80, protocol: HTTP}, hosts: ['*/*']"), "a unix socket has no port"},
		{"egress, detected", egress("port: {number: 80, protocol: AUTO}, hosts: ['*/*']"), "unknown protocol"},

		{"zones", dr("loadBalancer: {zoneAwareLbSetting: {enabled: true, failover: [{from: a, to: b}], failoverPriority: [version]}}"),
			"~zoneAwareLbSetting: has no effect"},
		{"zones and localities", dr("loadBalancer: {zoneAwareLbSetting: {}, localityLbSetting: {}}"),
			"cannot be combined with localityLbSetting"},
		{"zones to themselves", dr("loadBalancer: {zoneAwareLbSetting: {failover: [{from: a, to: a}]}}"), "fails over to itself"},
		{"zones below regions", dr("loadBalancer: {zoneAwareLbSetting: {failover: [{from: a/b, to: c}]}}"), "not regions"},
		{"zones by places", dr("loadBalancer: {zoneAwareLbSetting: {failoverPriority: [topology.kubernetes.io/zone]}}"),
			"places are ordered without it"},
		{"retry budget over a time", dr("retryBudget: {budgetInterval: 1s}"), "~budgetInterval: has no effect"},

		{"extension", ext("TrafficExtension", "lua: {inlineCode: x}"), "~spec: has no effect: extensions do not reach the proxies yet"},
		{"extension of nothing", ext("TrafficExtension", "match: []"), "neither wasm nor lua is set"},
		{"extension of both", ext("TrafficExtension", "lua: {inlineCode: x}, wasm: {url: a}"), "cannot be set together"},
		{"extension without a script", ext("TrafficExtension", "lua: {}"), "inlineCode: missing"},
		{"extension of a long script", ext("TrafficExtension", "lua: {inlineCode: "+strings.Repeat("x", 64<<10+1)+"}"), "longer than 64 KiB"},
		{"extension that decides", ext("TrafficExtension", "lua: {inlineCode: x}, phase: AUTHZ"), "access would not be restricted"},
		{"extension on no port", ext("TrafficExtension", "lua: {inlineCode: x}, match: [{ports: [{number: 0}]}]"),
			`match\[0\].ports\[0\].number: 0: not a port`},
		{"extension of a module", ext("TrafficExtension", "wasm: {url: 'foo://a'}"), "wasm.url: .*not the URL of a module"},
		{"module of a registry", ext("WasmPlugin", "url: registry.example.com/a:b"), "~has no effect"},
		{"module of nothing", ext("WasmPlugin", "url: a b"), "not the URL of a module"},
		{"module's hash", ext("WasmPlugin", "url: 'oci://a', sha256: abc"), "not a SHA-256"},
		{"module's environment", ext("WasmPlugin", "url: 'oci://a', vmConfig: {env: [{name: a}, {name: a, valueFrom: HOST, value: b}]}"),
			`(?s)same name as env\[0\].*the value comes from elsewhere`},
		{"module of two", ext("WasmPlugin", "url: 'oci://a', selector: {}, targetRef: {kind: Service, name: a}"), "only one of selector"},
		{"module of nobody", ext("WasmPlugin", "url: 'oci://a', targetRefs: [{kind: Foo, namespace: b}]"),
			`(?s)name: missing.*namespace.*kind: "Foo": not a target`},

		{"telemetry", tel("accessLogging: [{providers: [{name: a}]}]"), "~has no effect"},
		{"telemetry of no provider", tel("metrics: [{providers: [{name: ''}]}]"), "name: missing"},
		{"telemetry, share", tel("tracing: [{randomSamplingPercentage: 101}]"), "not a percentage"},
		{"telemetry, tags", tel("tracing: [{customTags: {'': {literal: {value: ''}}, b: {header: {}}, c: {environment: {}}}}]"),
			`(?s)tag has no name.*literal.value: missing.*header.name: missing.*environment.name: missing`},
		{
			"telemetry, overrides", tel("metrics: [{overrides: [{match: {customMetric: ''}, tagOverrides: {a: {}, b: {operation: REMOVE, value: " +
				"x}}}]}]"), `(?s)customMetric: missing.*missing for operation UPSERT.*no meaning for operation REMOVE`},
	} {
		t.Run(c.name, func(t *testing.T) { checkVerdict(t, c.yaml, c.want) })
	}
}
