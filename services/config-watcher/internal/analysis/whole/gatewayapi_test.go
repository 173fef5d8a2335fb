package whole

import (
	"slices"
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

// apiMesh is a Gateway with two listeners, a route, and what they refer to.
const apiMesh = `
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {selector: {app: web}, ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {containers: [{name: istio-proxy, image: a}]}}
---
{apiVersion: v1, kind: Secret, metadata: {name: other, namespace: infra}, data: {}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge, namespace: infra}, spec: {gatewayClassName: istio, listeners: [
{name: web, port: 80, protocol: HTTP, hostname: "*.example.com", allowedRoutes: {namespaces: {from: All}}}, {name: own, port: 81, protocol: HTTP}]}}
---
`

// TestGatewayAPI tells what is wrong with objects of the Gateway API: each finding names its object, field and remedy.
func TestGatewayAPI(t *testing.T) {
	route := func(spec string) string {
		return "{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {" + spec + "}}\n---\n"
	}
	gateway := func(class, listeners string) string {
		return "{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, namespace: infra}, spec: {gatewayClassName: " +
			class + ", listeners: [" + listeners + "]}}\n---\n"
	}
	const (
		toEdge = "parentRefs: [{name: edge, namespace: infra}], "
		toWeb  = "rules: [{backendRefs: [{name: web, port: 80}]}]"
		http   = "{name: l, port: 90, protocol: HTTP}"
		// toWebService ends the listeners of a Gateway, and gives it the workloads of Service web.
		toWebService = "], addresses: [{type: Hostname, value: web.shop.svc}"
	)
	for name, tc := range map[string]struct{ yaml, want, says string }{
		"nothing": {route(toEdge + toWeb), "", ""},
		"a Gateway that is not there": {route("parentRefs: [{name: edg, namespace: infra}], " + toWeb),
			"RouteParentNotFound HTTPRoute shop/r spec.parentRefs[0]", `did you mean "edge"?`},
		"a Gateway of another namespace": {route("parentRefs: [{name: edge}], " + toWeb),
			"RouteParentNotFound HTTPRoute shop/r spec.parentRefs[0]", "there is one in namespace infra"},
		"a Gateway of Istio's API": {route("parentRefs: [{name: old}], "+toWeb) +
			"{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: old, namespace: shop}, spec: {servers: [{port: {number: 80, " +
			"name: http, protocol: HTTP}, hosts: [a.example]}]}}\n",
			"RouteParentNotFound HTTPRoute shop/r spec.parentRefs[0]", "networking.istio.io takes no routes"},
		"no parent": {route(toWeb), "RouteParentNotFound HTTPRoute shop/r spec.parentRefs", "name a Gateway"},
		"a listener that is not there": {route("parentRefs: [{name: edge, namespace: infra, sectionName: wbe}], " + toWeb),
			"RouteNotAttached HTTPRoute shop/r spec.parentRefs[0]",
			`sectionName "wbe"; its listeners are web (port 80), own (port 81)`},
		"a namespace that is not allowed": {route("parentRefs: [{name: edge, namespace: infra, port: 81}], " + toWeb),
			"RouteNotAttached HTTPRoute shop/r spec.parentRefs[0]", "allowedRoutes.namespaces"},
		"a host that no listener takes": {route(toEdge + "hostnames: [a.org], " + toWeb),
			"RouteNotAttached HTTPRoute shop/r spec.parentRefs[0]", "the route's a.org; listeners have *.example.com"},
		"a Service that is no parent": {route("parentRefs: [{group: '', kind: Service, name: wbe}], " + toWeb),
			"RouteServiceInvalid HTTPRoute shop/r spec.parentRefs[0]", "there is no Service shop/wbe"},
		"backends": {route(toEdge + "rules: [{}, {backendRefs: [{name: wbe, port: 80}, {name: web, port: 81}], filters: [{type: " +
			"RequestMirror, requestMirror: {backendRef: {name: web, port: 80, namespace: other}}}]}]"),
			"RouteBackendInvalid HTTPRoute shop/r spec.rules[1].backendRefs[0], " +
				"RouteBackendInvalid HTTPRoute shop/r spec.rules[1].backendRefs[1], " +
				"RouteBackendInvalid HTTPRoute shop/r spec.rules[1].filters[0].requestMirror.backendRef",
			"has no port 81; it has 80"},
		"a rule that is not supported": {route(toEdge + "rules: [{matches: [{path: {type: RegularExpression, value: '('}}], " +
			"backendRefs: [{name: web, port: 80}]}]"),
			"RouteRuleUnsupported HTTPRoute shop/r spec.rules[0]", ""},
		"a class that is not there": {gateway("isto", http),
			"GatewayClassNotFound Gateway.gateway.networking.k8s.io infra/g spec.gatewayClassName", `did you mean "istio"?`},
		"a class of another controller": {gateway("nginx", http) + "{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, " +
			"metadata: {name: nginx}, spec: {controllerName: nginx.org/gateway}}\n", "", ""},
		"listeners of one port": {gateway("istio", http+", {name: m, port: 90, protocol: TCP}"),
			"ListenerNotServed Gateway.gateway.networking.k8s.io infra/g spec.listeners[0], " +
				"ListenerNotServed Gateway.gateway.networking.k8s.io infra/g spec.listeners[1]", "port 90"},
		"a port that another Gateway has": {gateway("istio", http+toWebService) +
			strings.Replace(gateway("istio", "{name: m, port: 90, protocol: TCP}, {name: o, port: 91, protocol: TCP}"+toWebService),
				"name: g,", "name: h,", 1),
			"ListenerTaken Gateway.gateway.networking.k8s.io infra/h spec.listeners[0]",
			"port 90, hostname \"\": the same workloads serve listener l of Gateway infra/g, which is older"},
		"a port of the proxy": {gateway("istio", "{name: l, port: 15021, protocol: HTTP}"),
			"ListenerNotServed Gateway.gateway.networking.k8s.io infra/g spec.listeners[0]", "the proxy itself has it"},
		"a Secret that is not there": {gateway("istio", "{name: l, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: gone}]}}"),
			"ListenerReferenceInvalid Gateway.gateway.networking.k8s.io infra/g spec.listeners[0].tls.certificateRefs[0]",
			"there is no Secret infra/gone"},
		"a Secret without a certificate": {gateway("istio", "{name: l, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: other}]}}"),
			"ListenerReferenceInvalid Gateway.gateway.networking.k8s.io infra/g spec.listeners[0].tls.certificateRefs[0]", "tls.crt"},
		"a Secret that is not granted": {gateway("istio",
			"{name: l, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: gone, namespace: shop}]}}"),
			"ListenerReferenceInvalid Gateway.gateway.networking.k8s.io infra/g spec.listeners[0].tls.certificateRefs[0]", "ReferenceGrant"},
		"an address of another type": {"{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, namespace: infra}, spec: " +
			"{gatewayClassName: istio, addresses: [{type: example.com/x, value: a}], listeners: [" + http + "]}}",
			"GatewayNotAccepted Gateway.gateway.networking.k8s.io infra/g spec.addresses[0].type", "use IPAddress or Hostname"},
		"an address that is no Service": {"{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, namespace: infra}, " +
			"spec: {gatewayClassName: istio, addresses: [{type: Hostname, value: web.example.com}], listeners: [" + http + "]}}",
			"GatewayAddressUnusable Gateway.gateway.networking.k8s.io infra/g spec.addresses[0].value", "write NAME, NAME.NAMESPACE.svc"},
		"an address of a Service that is not there": {gateway("istio", http+strings.Replace(toWebService, "web", "wbe", 1)),
			"GatewayServiceNotFound Gateway.gateway.networking.k8s.io infra/g spec.addresses[0].value", "create it"},
		"a ListenerSet that is not allowed": {"{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet, metadata: {name: s, namespace: " +
			"shop}, spec: {parentRef: {name: edge, namespace: infra}, listeners: [" + http + "]}}",
			"GatewayNotAccepted ListenerSet shop/s spec.parentRef", "allowedListeners"},
	} {
		t.Run(name, func(t *testing.T) {
			var found, says []string
			for _, m := range analyzed(t, Config{}, nil, apiMesh+tc.yaml).Messages {
				if m.Key.Group == groupGateway && !strings.HasPrefix(string(m.Code), "AttachedRoute") {
					found, says = append(found, short([]finding.Finding{m})...), append(says, m.Error())
				}
			}
			slices.Sort(found)
			if text := strings.Join(found, ", "); text != tc.want || !strings.Contains(strings.Join(says, "\n"), tc.says) {
				t.Errorf("%s\n%s", text, strings.Join(says, "\n"))
			}
		})
	}
}
