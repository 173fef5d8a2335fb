package authzview_test

import (
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/authzview"
)

// twoPorts is a Service for HTTP at 80 and for TCP at 90.
const twoPorts = "---\napiVersion: v1\nkind: Service\nmetadata: {name: two, namespace: shop}\nspec: {selector: {app: server}, ports: " +
	"[{name: http, port: 80, targetPort: 8080}, {name: tcp-db, port: 90, targetPort: 9090}]}\n"

const labelled = "apiVersion: v1\nkind: Pod\nmetadata: {name: server, namespace: shop, labels: {app: server}}\n" +
	"spec: {containers: [{name: istio-proxy}]}\n"

// TestPortsForTCP: at such a port a connection is judged, whatever is said about requests.
func TestPortsForTCP(t *testing.T) {
	const byMethod, byPath = "rules: [{to: [{operation: {methods: [GET]}}]}]", "action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]"
	get := authzview.Request{Method: "GET", Path: "/x", Host: "two"}
	unsaid := authzview.Request{Host: "two"}
	at := func(port uint32) authzview.Request {
		r := get
		r.Port = port
		return r
	}
	for name, c := range map[string]struct {
		to, policy string
		request    authzview.Request
		want       []string
	}{
		"ALLOW by method":         {"two", byMethod, at(90), []string{"denied", "port 90 of Service shop/two is for TCP", "a TCP connection"}},
		"DENY by path":            {"two", byPath, at(90), []string{"denied"}},
		"a port for HTTP":         {"two", byPath, at(80), []string{"allowed"}},
		"the workload's port":     {"pod/server", byMethod, at(9090), []string{"denied", "port 90 of Service shop/two is for TCP"}},
		"the workload's for HTTP": {"pod/server", byMethod, at(8080), []string{"allowed"}},
		"another of the workload": {"pod/server", byMethod, at(90), []string{"allowed", "port 90 of Service shop/two leads to port 9090"}},
		"no port of the Service": {"two", byMethod, unsaid,
			[]string{"allowed", "no port is said, and at some the answer is another: denied with --port 90"}},
		"no port of the workload": {"pod/server", byMethod, unsaid, []string{"allowed", "denied with --port 9090"}},
		"by the workload's number": {"two", "action: DENY, rules: [{to: [{operation: {ports: ['8080']}}]}]", get,
			[]string{"allowed", "denied with --port 80"}},
	} {
		t.Run(name, func(t *testing.T) {
			mustAnswer(t, check(t, load(t, labelled+twoPorts+policy("p", c.policy)), "outside", c.to, c.request), c.want...)
		})
	}
}

// TestAPortForBoth: one Service calls the workload's port HTTP, another TCP.
func TestAPortForBoth(t *testing.T) {
	const other = "---\napiVersion: v1\nkind: Service\nmetadata: {name: other, namespace: shop}\nspec: {selector: {app: server}, ports: " +
		"[{name: http, port: 80, targetPort: 9090}]}\n"
	mustAnswer(t, check(t, load(t, labelled+twoPorts+other), "outside", "pod/server", authzview.Request{Port: 9090}), "allowed",
		"other ports lead to the same one for HTTP", "request  GET /")
}

// TestModesOfPorts: without a port the mode of mutual TLS that a port has is not known.
func TestModesOfPorts(t *testing.T) {
	const modes = "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: shop}\n" +
		"spec: {selector: {matchLabels: {app: server}}, mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: DISABLE}}}\n"
	mustAnswer(t, check(t, load(t, labelled+twoPorts+modes), "outside", "two", authzview.Request{}), "denied", "allowed with --port 80")
}

// TestPathsThatNoPolicySees: a proxy refuses them itself.
func TestPathsThatNoPolicySees(t *testing.T) {
	const refused = "with 400 before any policy"
	for path, want := range map[string]string{"/a%00": refused, "/a#b": refused, "/é": refused, "/a?%00": "GET /a"} {
		mustAnswer(t, check(t, load(t, labelled), "outside", "server", authzview.Request{Path: path}), "allowed", want)
	}
}

// TestRequestsAreNotForPortsForTCP: a method says which ports may be meant.
func TestRequestsAreNotForPortsForTCP(t *testing.T) {
	m := load(t, labelled+twoPorts+policy("p", "rules: [{to: [{operation: {methods: [GET]}}]}]"))
	for _, n := range check(t, m, "outside", "two", authzview.Request{Method: "GET", Path: "/"}).Results[0].Notes {
		if strings.Contains(n, "no port is said") {
			t.Error(n)
		}
	}
}
