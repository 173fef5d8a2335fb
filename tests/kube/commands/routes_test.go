package commands

import (
	"fmt"
	"strings"
	"testing"
)

// routeDefinition is the definition of a kind of the Gateway API, without its schema.
func routeDefinition(kind, plural string) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.gateway.networking.k8s.io, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: gateway.networking.k8s.io
  scope: Namespaced
  names: {kind: %[1]s, plural: %[2]s, singular: %[3]s, listKind: %[1]sList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`, kind, plural, strings.ToLower(kind))
}

// TestRoutesOfTheGatewayAPIAreDescribed describes a Service to which an HTTPRoute leads that another controller serves.
func TestRoutesOfTheGatewayAPIAreDescribed(t *testing.T) {
	s := start(t)
	s.ApplyCRDs(t)
	k := &kubelet{ports: map[string]string{}}
	k.node(t, s)
	p := startPlane(t, s, k)
	p.watcher(t, s, "config-watcher-1", "", "config-watcher:1.2.3")
	s.Apply(t, `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80, name: http}]}
`)
	if out, said := does(t, s, 0, "describe", "service", "web.shop"); strings.Contains(out, "gateway.networking.k8s.io") ||
		strings.Contains(out, "HTTPRoute") {
		t.Errorf("without the Gateway API: %s%s", out, said)
	}
	s.Apply(t, routeDefinition("Gateway", "gateways")+"---"+routeDefinition("HTTPRoute", "httproutes"))
	s.Established(t, "gateways.gateway.networking.k8s.io", "httproutes.gateway.networking.k8s.io")
	s.Apply(t, `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: istio-system}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec: {hostnames: [web.example.com], parentRefs: [{name: edge, namespace: istio-system}, {name: gone}], rules: [{backendRefs: [{name: other, port: 80}]}, {backendRefs: [{name: web, port: 8080}]}]}
status: {parents: [{parentRef: {name: edge, namespace: istio-system}, controllerName: example.com/edge, conditions: [{type: Accepted, status: "False", reason: NotAllowedByListeners, message: namespace shop is not allowed}]}]}
`)
	out, _ := does(t, s, 0, "describe", "service", "web.shop")
	for _, text := range []string{
		"HTTPRoute shop/web, rule 2 of 2, hosts web.example.com (not of this mesh)",
		"parent Gateway istio-system/edge, not Accepted by example.com/edge (NotAllowedByListeners)",
		"error BackendPortMissing HTTPRoute shop/web spec.rules[1].backendRefs[0].port: Service shop/web has no port 8080",
		"error ParentMissing HTTPRoute shop/web spec.parentRefs[1]: there is no Gateway shop/gone", "namespace shop is not allowed",
		"warning RouteUnread HTTPRoute shop/web: example.com/edge serves it, and not this mesh",
	} {
		if !strings.Contains(out, text) {
			t.Errorf("%q is not in\n%s", text, out)
		}
	}
}
