package describe_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/describe"
)

const webService = `
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80, name: http}]}
---
kind: Gateway.gateway.networking.k8s.io
metadata: {name: edge, namespace: infra}
`

func TestRoutesOfTheGatewayAPI(t *testing.T) {
	for name, c := range map[string]struct {
		route string
		// shown is the route, and problems their codes and fields.
		shown    string
		problems []string
		says     string
	}{
		"a rule that leads there": {
			`{kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {hostnames: [a.example], parentRefs: [{name: edge, namespace: infra, sectionName: https}], rules: [{}, {backendRefs: [{name: other, port: 1}, {name: web, port: 80}]}]}}`,
			"HTTPRoute shop/r [2] of 2 [a.example] {Gateway infra/edge, section https []}", []string{"RouteUnread "},
			"write a Gateway and a VirtualService",
		},
		"a rule of another namespace": {
			`{kind: GRPCRoute, metadata: {name: r, namespace: edge}, spec: {parentRefs: [{name: edge, namespace: infra}], rules: [{backendRefs: [{name: web, namespace: shop, port: 80}]}]}}`,
			"GRPCRoute edge/r [1] of 1 [] {Gateway infra/edge []}", []string{"RouteUnread "}, "",
		},
		"a mirror": {
			`{kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {parentRefs: [{name: edge, namespace: infra}], rules: [{filters: [{type: RequestMirror, requestMirror: {backendRef: {name: web, port: 80}}}]}]}}`,
			"HTTPRoute shop/r [1] of 1 [] {Gateway infra/edge []}", []string{"RouteUnread "}, "",
		},
		"attached to the Service": {
			`{kind: TCPRoute, metadata: {name: r, namespace: shop}, spec: {parentRefs: [{group: "", kind: Service, name: web, port: 80}], rules: [{backendRefs: [{name: other, port: 1}]}]}}`,
			"TCPRoute shop/r [] of 1 [] {Service shop/web, port 80 []}", []string{"RouteUnread "}, "",
		},
		"neither": {
			`{kind: HTTPRoute, metadata: {name: r, namespace: edge}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}, {name: web, namespace: shop, group: x, kind: Bucket}]}]}}`, "", nil, ""},
		"a port that is not there": {
			`{kind: TLSRoute, metadata: {name: r, namespace: shop}, spec: {parentRefs: [{name: edge, namespace: infra}], rules: [{backendRefs: [{name: web, port: 443}]}]}}`,
			"TLSRoute shop/r [1] of 1 [] {Gateway infra/edge []}", []string{"BackendPortMissing spec.rules[0].backendRefs[0].port", "RouteUnread "},
			"no port 443",
		},
		"a parent that is not there": {
			`{kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}}`,
			"HTTPRoute shop/r [1] of 1 [] {Gateway shop/edge []}", []string{"ParentMissing spec.parentRefs[0]", "RouteUnread "},
			"no Gateway shop/edge",
		},
		"no parent": {
			`{kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {rules: [{backendRefs: [{name: web, port: 80}]}]}}`,
			"HTTPRoute shop/r [1] of 1 []", []string{"ParentMissing spec.parentRefs", "RouteUnread "}, "name a Gateway",
		},
		"served by another controller": {
			`{kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {parentRefs: [{name: edge, namespace: infra}], rules: [{backendRefs: [{name: web, port: 80}]}]}, status: {parents: [{parentRef: {group: gateway.networking.k8s.io, kind: Gateway, name: edge, namespace: infra}, controllerName: example/one, conditions: [{type: Accepted, status: "True"}, {type: ResolvedRefs, status: "False", reason: RefNotPermitted, message: no grant}]}]}}`,
			"HTTPRoute shop/r [1] of 1 [] {Gateway infra/edge [Accepted by example/one not ResolvedRefs by example/one (RefNotPermitted)]}",
			[]string{"RouteNotResolvedRefs spec.parentRefs[0]", "RouteUnread "}, "example/one serves it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := mesh(t, strings.TrimSpace(webService)+"\n---\n"+c.route)
			services, err := m.Services("shop")
			if err != nil || len(services) != 1 {
				t.Fatal(services, err)
			}
			routes, err := m.Routes(services[0])
			if err != nil {
				t.Fatal(err)
			}
			shown, says := "", ""
			var problems []string
			for _, r := range routes {
				shown += strings.TrimSuffix(fmt.Sprintf("%s %s/%s %v of %d %v %v", r.Kind, r.Namespace, r.Name, r.Rules, r.Of, r.Hostnames,
					strings.Trim(fmt.Sprint(r.Parents), "[]")), " ")
				for _, p := range r.Problems {
					problems, says = append(problems, p.Code+" "+p.Field), says+p.Message
				}
			}
			if shown != c.shown || !slices.Equal(problems, c.problems) || !strings.Contains(says, c.says) {
				t.Errorf("%s\n%v\n%s", shown, problems, says)
			}
		})
	}
	if _, err := mesh(t, `{kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {rules: 1}}`).Routes(describe.Service{}); err == nil ||
		!strings.Contains(err.Error(), "HTTPRoute shop/r") {
		t.Errorf("%v", err)
	}
}
