package normalise

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/gatewaydeploy"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

const edgeAndRoute = `
{apiVersion: v1, kind: Namespace, metadata: {name: edge, labels: {mesh: on-it}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {mesh: on-it}}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{port: 80}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge, generation: 1}
spec:
  gatewayClassName: istio
  listeners:
  - {name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: web}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop, generation: 1}
spec: {parentRefs: [{name: edge, namespace: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}
`

const (
	apiGateway = "Gateway.gateway.networking.k8s.io edge/edge"
	apiRoute   = "HTTPRoute.gateway.networking.k8s.io shop/web"
)

// has reports whether the mesh has a resource, as "<kind> <namespace>/<name>".
func (s *state) has(name string) bool {
	for k := range s.held {
		if k.Kind+" "+k.Namespace+"/"+k.Name == name {
			return true
		}
	}
	return false
}

// TestGatewayAPIIsPartOfTheMesh: objects of the Gateway API become resources whose kind has the group, beside Istio's
// of the same name, and what they refer to decides about them.
func TestGatewayAPIIsPartOfTheMesh(t *testing.T) {
	s := newState(t, edgeAndRoute+`
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec: {selector: {istio: edge}, servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*"]}]}
`)
	if !s.has(apiGateway) || !s.has("Gateway edge/edge") || !s.has(apiRoute) {
		t.Fatal("a resource is missing")
	}
	listeners := func() (out []string) {
		for k, r := range s.held {
			if k.Kind == "Gateway.gateway.networking.k8s.io" {
				for _, l := range r.GetGatewayApi().GetListeners().GetListeners() {
					out = append(out, l.GetName())
				}
			}
		}
		return out
	}
	if got := listeners(); !slices.Equal(got, []string{"http"}) {
		t.Errorf("listeners %q without the Secret", got)
	}
	if want := []object.Key{{Kind: "Secret", Namespace: "edge", Name: "web"}}; !slices.Equal(s.last.Judged.Wanted, want) {
		t.Errorf("wants %v", s.last.Judged.Wanted)
	}
	secret := object.Key{Group: "fairlead.dev", Kind: object.KindCredentialState, Namespace: "edge", Name: "web"}
	s.change(Change{secret, &object.Object{Key: secret, Body: &object.CredentialState{NotAfter: time.Now().Add(time.Hour)}}})
	if got := listeners(); !slices.Equal(got, []string{"http", "https"}) {
		t.Errorf("listeners %q with the Secret", got)
	}
	s.change(Change{secret, nil})
	if got := listeners(); !slices.Equal(got, []string{"http"}) {
		t.Errorf("listeners %q after the Secret", got)
	}
	s.change(Change{Key: object.Key{Group: "networking.istio.io", Kind: "Gateway", Namespace: "edge", Name: "edge"}})
	if s.has("Gateway edge/edge") || !s.has(apiGateway) {
		t.Error("the one Gateway takes the other away")
	}
	s.change(Change{Key: object.Key{Group: "gateway.networking.k8s.io", Kind: "Gateway", Namespace: "edge", Name: "edge"}})
	if s.has(apiGateway) || s.has(apiRoute) {
		t.Error("a Gateway that is gone is served, or its route")
	}
}

// TestGatewayAPIWithTenants: the tenancy of the mesh holds for Gateways of the Gateway API, which then have no
// workloads of other namespaces.
func TestGatewayAPIWithTenants(t *testing.T) {
	const foreign = `
{apiVersion: v1, kind: Service, metadata: {name: edge, namespace: edge}, spec: {selector: {app: edge}, ports: [{port: 80}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: shop, generation: 1}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: edge.edge.svc.cluster.local}]
  listeners: [{name: http, port: 80, protocol: HTTP}]
`
	for _, tenants := range []bool{false, true} {
		s := &state{t: t, mesh: New(Config{Tenancy: Tenancy{Enabled: tenants}}), held: map[resource.Key]*configv1.Resource{}}
		s.apply(foreign)
		if got := s.has("Gateway.gateway.networking.k8s.io shop/web"); got == tenants {
			t.Errorf("tenants %v: served by workloads of another namespace: %v", tenants, got)
		}
	}
}

// TestGatewayAPIInTheRootNamespace: the root namespace is the one that the mesh configuration names, from the moment it
// does: its ConfigMaps have the defaults of classes, and its Gateways may have the workloads of others.
func TestGatewayAPIInTheRootNamespace(t *testing.T) {
	const mesh = `
{apiVersion: v1, kind: Service, metadata: {name: edge, namespace: edge}, spec: {selector: {app: edge}, ports: [{port: 80}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: web, namespace: root, generation: 1}, spec: {gatewayClassName: istio,
addresses: [{type: Hostname, value: edge.edge.svc.cluster.local}], listeners: [{name: http, port: 80, protocol: HTTP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: own, namespace: edge, generation: 1}, spec: {gatewayClassName: istio,
listeners: [{name: http, port: 80, protocol: HTTP}]}}
`
	s := &state{t: t, mesh: New(Config{Tenancy: Tenancy{Enabled: true}}), held: map[resource.Key]*configv1.Resource{}}
	s.apply(mesh)
	bad := object.Key{Kind: "ConfigMap", Namespace: "root", Name: "defaults"}
	s.change(Change{bad, &object.Object{Key: bad, Labels: map[string]string{gatewaydeploy.DefaultsLabel: "istio"},
		Body: &object.Overlays{Refused: "volumes are not allowed"}}})
	own := object.Key{Group: "gateway.networking.k8s.io", Kind: "Gateway", Namespace: "edge", Name: "own"}
	reason := func() string { return s.last.Judged.Statuses[own].Gateway.Conditions[0].Message }
	if s.has("Gateway.gateway.networking.k8s.io root/web") {
		t.Fatal("a Gateway has the workloads of another namespace")
	}
	s.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: 'rootNamespace: root'}}")
	if got := reason(); !s.has("Gateway.gateway.networking.k8s.io root/web") || got != "volumes are not allowed" {
		t.Errorf("the root namespace has not moved there: %q", got)
	}
	s.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: 'rootNamespace: other'}}")
	if got := reason(); s.has("Gateway.gateway.networking.k8s.io root/web") || got != "all listeners are served" {
		t.Errorf("the root namespace has not moved away: %q", got)
	}
}

// TestGatewayAPIOfUndiscoveredNamespaces: what is in a namespace that the mesh does not discover has no effect and no
// status.
func TestGatewayAPIOfUndiscoveredNamespaces(t *testing.T) {
	s := newState(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "discoverySelectors: [{matchLabels: {mesh: on-it}}]"}
---
`+edgeAndRoute)
	if !s.has(apiGateway) || !s.has(apiRoute) {
		t.Fatal("a resource is missing")
	}
	s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}")
	if s.has(apiRoute) || !s.has(apiGateway) {
		t.Error("the route of a namespace that is not discovered is attached, or the Gateway is gone")
	}
	route := object.Key{Group: "gateway.networking.k8s.io", Kind: "HTTPRoute", Namespace: "shop", Name: "web"}
	if st, told := s.last.Judged.Statuses[route]; !told || st != nil {
		t.Errorf("its status is %v, %v", st, told)
	}
	s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {mesh: on-it}}}")
	if !s.has(apiRoute) {
		t.Error("the route of a namespace that is discovered again is not attached")
	}
}

// TestExpiredCertificatesAreToldWithoutAChange: a certificate that expires is served, and the status says so when time
// passes.
func TestExpiredCertificatesAreToldWithoutAChange(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := &state{t: t, mesh: New(Config{Now: func() time.Time { return now }}), held: map[resource.Key]*configv1.Resource{}}
	s.apply(edgeAndRoute)
	secret := object.Key{Group: "fairlead.dev", Kind: object.KindCredentialState, Namespace: "edge", Name: "web"}
	s.change(Change{secret, &object.Object{Key: secret, Body: &object.CredentialState{NotAfter: now.Add(time.Hour)}}})
	gateway := object.Key{Group: "gateway.networking.k8s.io", Kind: "Gateway", Namespace: "edge", Name: "edge"}
	s.change(TimePassed())
	if len(s.last.Judged.Statuses) != 0 || !s.last.Empty() {
		t.Errorf("before it expires, %d statuses change", len(s.last.Judged.Statuses))
	}
	now = now.Add(2 * time.Hour)
	s.change(TimePassed())
	if s.last.Judged.Statuses[gateway] == nil || !s.last.Empty() {
		t.Error("the status says nothing, or the listener is changed")
	}
	if got := fmt.Sprintf("%+v", s.last.Judged.Statuses[gateway].Gateway.Listeners[1].Conditions); !strings.Contains(got, "has expired") {
		t.Errorf("the status says %s", got)
	}
}
