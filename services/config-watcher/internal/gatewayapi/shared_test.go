package gatewayapi_test

import (
	"fmt"
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// TestSharedWorkloads has two Gateways of the same workloads, and which listeners of the younger one are served: of two
// that conflict that of the older object is, whatever changes in what order.
func TestSharedWorkloads(t *testing.T) {
	const edge = "  addresses: [{type: Hostname, value: edge}]"
	service := objectOf("Service", "shop", "edge", "{selector: {app: edge}, ports: [{port: 80}]}")
	created := func(name, year, spec string, listeners ...string) string {
		return strings.Replace(gatewayOf(name, spec, listeners...), "namespace: shop", "namespace: shop, creationTimestamp: '"+year+
			"-01-01T00:00:00Z'", 1)
	}
	old := created("z", "2025", edge, "{name: web, port: 80, protocol: HTTP, hostname: a.com}", "{name: udp, port: 53, protocol: UDP}")
	young := created("a", "2026", edge, "{name: same, port: 80, protocol: HTTP, hostname: A.com}",
		"{name: other, port: 80, protocol: HTTP}", "{name: tcp, port: 53, protocol: TCP}", "{name: udp, port: 53, protocol: UDP}")
	const (
		served = "served=true Accepted=True/Accepted Conflicted=False/NoConflicts"
		host   = "served=false Accepted=False/HostnameConflict Conflicted=True/HostnameConflict"
		kind   = "served=false Accepted=False/ProtocolConflict Conflicted=True/ProtocolConflict"
	)
	want := func(w *world, name string, all ...string) {
		t.Helper()
		lines := strings.Split(strings.TrimSpace(w.status("Gateway", "shop", name)), "\n")
		for i, c := range all {
			has(t, name, lines[i+1], c)
		}
	}
	w := load(t, service+young)
	want(w, "a", served, served, served, served)
	w.put(t, old)
	want(w, "z", served, served)
	want(w, "a", host, served, served, kind)
	has(t, "Gateway a", w.status("Gateway", "shop", "a"), "Accepted=True/ListenersNotValid")
	has(t, "message", fmt.Sprint(w.statuses[gatewayKey("Gateway", "shop", "a")].Gateway.Listeners[0].Message),
		"listener web of Gateway shop/z, which is older; choose another port or hostname, or other workloads")
	if got := w.resources[gatewayKey("Gateway", "shop", "a")].GetListeners().GetListeners(); len(got) != 4 {
		t.Errorf("what the workloads decide is not handed to them: %v", got)
	}

	w.put(t, strings.Replace(old, "protocol: HTTP", "protocol: TCP", 1))
	want(w, "a", kind, kind, served, kind)
	w.put(t, created("z", "2025", edge, "{name: bad, port: 80, protocol: HTTPS, tls: {certificateRefs: [{name: gone}]}}"))
	want(w, "a", served, served, served, served) // a listener that is not served takes nothing
	w.put(t, old, strings.Replace(service, "edge}", "other}", 1))
	want(w, "a", host, served, served, kind) // the Service has other workloads, and still both have the same
	w.put(t, created("z", "2025", "", "{name: web, port: 80, protocol: HTTP, hostname: a.com}"))
	want(w, "a", served, served, served, served) // it has workloads of its own
	w.put(t, old)
	want(w, "a", host, served, served, kind)
	r := w.drop("Gateway", "shop", "z")
	want(w, "a", served, served, served, served)
	if len(r.Statuses) != 2 || r.Resources[gatewayKey("Gateway", "shop", "a")] != (*configv1.GatewayAPIConfig)(nil) {
		t.Errorf("more has changed than the statuses of both: %v", r)
	}
}

// TestSharedListenerSets has that the age of the ListenerSet counts, not that of its Gateway.
func TestSharedListenerSets(t *testing.T) {
	const spec = "  addresses: [{type: Hostname, value: edge}]\n  allowedListeners: {namespaces: {from: Same}}"
	w := load(t, objectOf("Service", "shop", "edge", "{selector: {app: edge}, ports: [{port: 80}]}")+
		gatewayOf("a", spec, "{name: x, port: 81, protocol: HTTP}")+gatewayOf("b", spec, "{name: y, port: 80, protocol: HTTP}")+
		strings.Replace(objectOf("ListenerSet", "shop", "set", "{parentRef: {name: a}, listeners: [{name: z, port: 80, protocol: HTTP}]}"),
			"namespace: shop", "namespace: shop, creationTimestamp: '2026-01-01T00:00:00Z'", 1))
	has(t, "b", w.status("Gateway", "shop", "b"), "y: 0 [HTTPRoute GRPCRoute] served=true")
	has(t, "the set", w.status("ListenerSet", "shop", "set"), "Accepted=False/ListenersNotValid",
		"z: 0 [HTTPRoute GRPCRoute] served=false Accepted=False/HostnameConflict")
	has(t, "a", w.status("Gateway", "shop", "a"), "sets: 0")
	w.drop("Gateway", "shop", "b")
	has(t, "the set", w.status("ListenerSet", "shop", "set"), "Accepted=True/Accepted", "served=true")
}
