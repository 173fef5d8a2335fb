package commands

import (
	"fmt"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
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

// TestRoutesOfTheGatewayAPIAreDescribed describes a Service to which an HTTPRoute leads that its parents do not take.
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
spec: {gatewayClassName: istio, listeners: [{name: web, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec: {hostnames: [web.example.com], parentRefs: [{name: edge, namespace: istio-system}, {name: gone}], rules: [{backendRefs: [{name: other, port: 80}]}, {backendRefs: [{name: web, port: 8080}]}]}
`)
	testkit.Eventually(t, testkit.Patience, func() error {
		if out, _ := does(t, s, 0, "config", "status", "httproute", "-n", "shop"); !strings.Contains(out, "NotAllowedByListeners") {
			return fmt.Errorf("config-watcher has not judged the route:\n%s", out)
		}
		return nil
	})
	out, _ := does(t, s, 0, "describe", "service", "web.shop")
	for _, text := range []string{
		"HTTPRoute shop/web, rule 2 of 2, hosts web.example.com",
		"parent Gateway istio-system/edge, not Accepted (NotAllowedByListeners)", "parent Gateway shop/gone, not of this mesh",
		"error BackendPortMissing HTTPRoute shop/web spec.rules[1].backendRefs[0].port: Service shop/web has no port 8080",
		"error ParentMissing HTTPRoute shop/web spec.parentRefs[1]: there is no Gateway shop/gone",
		"NotAllowedByListeners: no listener allows HTTPRoutes of namespace shop",
	} {
		if !strings.Contains(out, text) {
			t.Errorf("%q is not in\n%s", text, out)
		}
	}
	out, _ = does(t, s, 0, "describe", "httproute/web", "-n", "shop")
	for _, text := range []string{
		"Hosts: web.example.com", "Parent Gateway shop/gone: it is not there", "there is no Service shop/other", "has no port 8080",
	} {
		if !strings.Contains(out, text) {
			t.Errorf("%q is not in\n%s", text, out)
		}
	}
}
