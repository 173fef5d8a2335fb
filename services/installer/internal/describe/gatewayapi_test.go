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
---
kind: Gateway.gateway.networking.k8s.io
metadata: {name: other, namespace: infra}
`

func TestRoutesOfTheGatewayAPI(t *testing.T) {
	accepted := []describe.Condition{{Type: "Accepted", Status: "True"}}
	for name, c := range map[string]struct {
		route string
		// shown is the route, and problems their codes and fields.
		shown    string
		problems []string
		says     string
	}{
		"a rule that leads there": {
			`{kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {hostnames: [a.example], parentRefs: [{name: edge, namespace: infra, sectionName: https}], rules: [{}, {backendRefs: [{name: other, port: 1}, {name: web, port: 80}]}]}}`,
			"HTTPRoute shop/r [2] of 2 [a.example] {Gateway infra/edge, section https [Accepted]}", nil, "",
		},
		"a rule of another namespace": {
			`{kind: GRPCRoute, metadata: {name: r, namespace: edge}, spec: {parentRefs: [{name: edge, namespace: infra}], rules: [{backendRefs: [{name: web, namespace: shop, port: 80}]}]}}`,
			"GRPCRoute edge/r [1] of 1 [] {Gateway infra/edge [Accepted]}", nil, "",
		},
		"a mirror": {
			`{kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {parentRefs: [{name: edge, namespace: infra}], rules: [{filters: [{type: RequestMirror, requestMirror: {backendRef: {name: web, port: 80}}}]}]}}`,
			"HTTPRoute shop/r [1] of 1 [] {Gateway infra/edge [Accepted]}", nil, "",
		},
		"attached to the Service": {
			`{kind: TCPRoute, metadata: {name: r, namespace: shop}, spec: {parentRefs: [{group: "", kind: Service, name: web, port: 80}], rules: [{backendRefs: [{name: other, port: 1}]}]}}`,
			"TCPRoute shop/r [] of 1 [] {Service shop/web, port 80 [Accepted]}", nil, "",
		},
		"neither": {
			`{kind: HTTPRoute, metadata: {name: r, namespace: edge}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}, {name: web, namespace: shop, group: x, kind: Bucket}]}]}}`, "", nil, ""},
		"a port that is not there": {
			`{kind: TLSRoute, metadata: {name: r, namespace: shop}, spec: {parentRefs: [{name: edge, namespace: infra}], rules: [{backendRefs: [{name: web, port: 443}]}]}}`,
			"TLSRoute shop/r [1] of 1 [] {Gateway infra/edge [Accepted]}", []string{"BackendPortMissing spec.rules[0].backendRefs[0].port"},
			"no port 443",
		},
		"a parent that is not there": {
			`{kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}}`,
			"HTTPRoute shop/r [1] of 1 [] {Gateway shop/edge [not of this mesh]}", []string{"ParentMissing spec.parentRefs[0]"},
			"no Gateway shop/edge",
		},
		"no parent": {
			`{kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {rules: [{backendRefs: [{name: web, port: 80}]}]}}`,
			"HTTPRoute shop/r [1] of 1 []", []string{"ParentMissing spec.parentRefs"}, "name a Gateway",
		},
		"a parent of another controller": {
			`{kind: HTTPRoute, metadata: {name: r, namespace: shop}, spec: {parentRefs: [{name: other, namespace: infra}], rules: [{backendRefs: [{name: web, port: 80}]}]}}`,
			"HTTPRoute shop/r [1] of 1 [] {Gateway infra/other [not of this mesh]}", []string{"ParentForeign spec.parentRefs[0]"},
			"another controller serves it",
		},
		"a parent that does not take it": {
			`{kind: UDPRoute, metadata: {name: r, namespace: shop}, spec: {parentRefs: [{name: edge, namespace: infra, port: 7}], rules: [{backendRefs: [{name: web, port: 80}]}]}}`,
			"UDPRoute shop/r [1] of 1 [] {Gateway infra/edge, port 7 [not Accepted (NotAllowedByListeners)]}",
			[]string{"RouteNotAccepted spec.parentRefs[0]", "RouteNotProgrammed "}, "the listener allows none",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := mesh(t, strings.TrimSpace(webService)+"\n---\n"+c.route)
			for i := range m.Objects {
				if strings.HasSuffix(m.Objects[i].Kind, "Route") {
					m.Objects[i].Conditions = []describe.Condition{{Type: "Programmed", Status: "True"}}
					m.Objects[i].Parents = map[string][]describe.Condition{"Gateway infra/edge": accepted, "Gateway infra/edge, section https": accepted,
						"Service shop/web, port 80":  accepted,
						"Gateway infra/edge, port 7": {{"Accepted", "False", "NotAllowedByListeners", "the listener allows none"}}}
				}
				if m.Objects[i].Kind == "UDPRoute" {
					m.Objects[i].Conditions = []describe.Condition{{"Programmed", "False", "Pending", "not yet"}}
				}
			}
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

// TestServedGateways finds the Gateways of a workload: by the Service that their address names, else by their label.
func TestServedGateways(t *testing.T) {
	m := mesh(t, strings.TrimSpace(webService)+`
---
kind: Gateway.gateway.networking.k8s.io
metadata: {name: named, namespace: infra}
spec: {addresses: [{type: Hostname, value: web.shop.svc}], listeners: [{name: l, port: 80, protocol: HTTP}]}
---
kind: Gateway.gateway.networking.k8s.io
metadata: {name: made, namespace: shop}
spec: {listeners: [{name: l, port: 80, protocol: HTTP}]}
---
kind: Gateway.gateway.networking.k8s.io
metadata: {name: address, namespace: shop}
spec: {addresses: [{value: 192.0.2.1}]}
`)
	services, err := m.Services("shop")
	if err != nil {
		t.Fatal(err)
	}
	for want, labels := range map[string]map[string]string{
		"infra/named":  {"app": "web"},
		"shop/made":    {"gateway.networking.k8s.io/gateway-name": "made"},
		"shop/address": {"gateway.networking.k8s.io/gateway-name": "address"},
		"":             {"app": "other"},
	} {
		list, err := m.ServedGateways(describe.Workload{Namespace: "shop", Name: "p", Labels: labels}, services)
		got := ""
		for _, g := range list {
			got += g.Gateway
		}
		if err != nil || got != want {
			t.Errorf("%v: %s, %v", labels, got, err)
		}
	}
}
