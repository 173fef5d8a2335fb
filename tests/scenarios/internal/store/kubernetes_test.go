package store

import (
	"maps"
	"net/netip"
	"testing"

	"fairlead.dev/tests/scenarios/internal/apiserver"
	"fairlead.dev/tests/scenarios/internal/document"
)

func TestObjectsAreWrittenInTheOrderOfTheirAge(t *testing.T) {
	var names string
	for _, d := range inOrderOfAge(document.Split(`
metadata: {name: a}
---
metadata: {name: b, creationTimestamp: "2100-01-01T00:00:00Z"}
---
metadata: {name: c, creationTimestamp: "2024-01-01T00:00:00Z"}
---
metadata: {name: d, creationTimestamp: "2020-01-01T00:00:00Z"}
---
metadata: {name: e}
`)) {
		names += d.Name()
	}
	if names != "dcaeb" {
		t.Errorf("the order is %s", names)
	}
}

func TestEndpointsOfServicesWithSelectors(t *testing.T) {
	held := map[string]document.Document{}
	for _, d := range document.Split(`
{kind: Service, metadata: {name: one, namespace: a}, spec: {clusterIP: 198.19.0.2, selector: {app: x}}}
---
{kind: Service, metadata: {name: six, namespace: a}, spec: {clusterIP: "fd19::1", selector: {app: x}}}
---
{kind: Service, metadata: {name: both, namespace: a}, spec: {clusterIP: None, ipFamilies: [IPv4, IPv6], selector: {app: x}}}
---
{kind: Service, metadata: {name: early, namespace: a}, spec: {publishNotReadyAddresses: true, selector: {app: x}}}
---
{kind: Service, metadata: {name: nobody, namespace: a}, spec: {selector: {app: y}}}
---
{kind: Service, metadata: {name: alias, namespace: a}, spec: {type: ExternalName, selector: {app: x}}}
---
{kind: Service, metadata: {name: by-hand, namespace: a}, spec: {}}
---
{kind: Pod, metadata: {name: r, namespace: a, labels: {app: x}}, status: {podIP: 198.18.0.1, podIPs: [{ip: 198.18.0.1}, {ip: "fd18::1"}], conditions: [{type: Ready, status: "True"}]}}
---
{kind: Pod, metadata: {name: n, namespace: a, labels: {app: x}}, status: {podIP: 198.18.0.2, conditions: [{type: Ready, status: "False"}]}}
---
{kind: Pod, metadata: {name: r, namespace: b, labels: {app: x}}, status: {podIP: 198.18.0.3}}
`) {
		held[d.Ref()] = d
	}
	r, r6, n := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("fd18::1"), netip.MustParseAddr("198.18.0.2")
	want := map[string]apiserver.Endpoints{
		"a/one": {r: true, n: false}, "a/six": {r6: true}, "a/both": {r: true, r6: true, n: false}, "a/early": {r: true, n: true}, "a/nobody": {},
	}
	if got := endpointsOf(held); !maps.EqualFunc(got, want, maps.Equal[apiserver.Endpoints, apiserver.Endpoints]) {
		t.Errorf("endpoints are %v, want %v", got, want)
	}
}
