package normalise

import (
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// TestBannedEndpoints: no EndpointSet holds a workload of a banned identity until the ban is lifted, whichever object
// lists the workload.
func TestBannedEndpoints(t *testing.T) {
	s := newState(t, `
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec: {clusterIP: 10.1.0.1, selector: {app: app}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: bad, namespace: shop, labels: {app: app}}
spec: {serviceAccountName: bad}
status: {podIP: 10.0.0.1, phase: Running, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: good, namespace: shop, labels: {app: app}}
spec: {serviceAccountName: good}
status: {podIP: 10.0.0.2, phase: Running, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: listed, namespace: shop}
spec:
  hosts: [listed.example.com]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.3, serviceAccount: bad}, {address: 10.0.0.4, serviceAccount: good}]
`)
	has := func(when string, bad bool) {
		t.Helper()
		for name, addresses := range map[string][2]string{
			"app.shop.svc.cluster.local:80/Kubernetes": {"10.0.0.1", "10.0.0.2"}, "listed.example.com:80/Kubernetes": {"10.0.0.3", "10.0.0.4"},
		} {
			got := s.endpoints("shop", name)
			if strings.Contains(got, addresses[0]) != bad || !strings.Contains(got, addresses[1]) {
				t.Errorf("%s: %s has %s", when, name, got)
			}
		}
	}
	has("before", true)
	s.apply("apiVersion: fairlead.dev/v1\nkind: IdentityBan\nmetadata: {name: one}\nspec: {identity: spiffe://cluster.local/ns/shop/sa/bad, " +
		"reason: stolen}\n")
	has("banned", false)
	if b := s.held[resource.Key{Kind: "IdentityBan", Name: "one"}].GetIdentityBan(); b.GetReason() != "stolen" {
		t.Errorf("resource: %v", b)
	}
	// A second ban of the same identity holds when the first is lifted.
	s.apply("apiVersion: fairlead.dev/v1\nkind: IdentityBan\nmetadata: {name: two}\nspec: {identity: spiffe://cluster.local/ns/shop/sa/bad}\n")
	lift := func(name string) {
		s.change(Change{Key: object.Key{Group: kinds.GroupFairlead, Kind: kinds.IdentityBan, Name: name}})
	}
	lift("one")
	has("banned twice, lifted once", false)
	lift("two")
	has("lifted", true)
}
