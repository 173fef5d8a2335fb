package gatewayapi_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	"fairlead.dev/services/config-watcher/internal/gatewayapi"
)

const basic = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: shop}
spec:
  gatewayClassName: istio
  listeners:
  - {name: http, port: 80, protocol: HTTP, hostname: "*.example.com"}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop, generation: 3}
spec:
  parentRefs: [{name: web}]
  hostnames: [cart.example.com, other.example.org]
  rules:
  - matches: [{path: {type: PathPrefix, value: /cart/}, method: GET}, {path: {type: Exact, value: /}}]
    backendRefs: [{name: cart, port: 8080}, {name: gone, port: 80, weight: 2}]
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {ports: [{port: 8080}]}
`

func TestHTTPRouteIsAttached(t *testing.T) {
	w := load(t, basic)
	route := w.resources[gatewayKey(gatewayapi.HTTPRoute, "shop", "cart")].GetRoute()
	attached := route.GetListeners()
	if len(attached) != 1 || attached[0].GetListener() != "http" || attached[0].GetGateway() != "shop/web" {
		t.Fatalf("attached to %v", attached)
	}
	if hosts := attached[0].GetHosts(); len(hosts) != 1 || hosts[0].GetDomain() != "cart.example.com" {
		t.Errorf("hosts %v", hosts)
	}
	text := prototext.Format(route)
	for _, want := range []string{"unresolved.invalid", "cart.shop.svc.cluster.local", "path_elements"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	want := "web: Accepted=True/Accepted ResolvedRefs=False/BackendNotFound\n"
	if got := statusText(w.statuses[gatewayKey(gatewayapi.HTTPRoute, "shop", "cart")]); got != want {
		t.Errorf("status %s, want %s", got, want)
	}
	want = `Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs sets: 0
http: 1 [HTTPRoute GRPCRoute] served=true Accepted=True/Accepted Conflicted=False/NoConflicts ResolvedRefs=True/ResolvedRefs
`
	if got := statusText(w.statuses[gatewayKey(gatewayapi.Gateway, "shop", "web")]); got != want {
		t.Errorf("status %s, want %s", got, want)
	}
}
