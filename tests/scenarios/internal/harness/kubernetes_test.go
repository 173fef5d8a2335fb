package harness

import (
	"context"
	"io"
	"maps"
	"net"
	"net/netip"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/scenarios/internal/apiserver"
)

func TestObjectsAreWrittenInTheOrderOfTheirAge(t *testing.T) {
	var names string
	for _, d := range inOrderOfAge(splitDocuments(`
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
		names += d.member("metadata", "name")
	}
	if names != "dcaeb" {
		t.Errorf("the order is %s", names)
	}
}

func TestEndpointsOfServicesWithSelectors(t *testing.T) {
	held := map[string]document{}
	for _, d := range splitDocuments(`
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
		held[d.ref()] = d
	}
	r, r6, n := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("fd18::1"), netip.MustParseAddr("198.18.0.2")
	want := map[string]apiserver.Endpoints{
		"a/one": {r: true, n: false}, "a/six": {r6: true}, "a/both": {r: true, r6: true, n: false}, "a/early": {r: true, n: true}, "a/nobody": {},
	}
	if got := endpointsOf(held); !maps.EqualFunc(got, want, maps.Equal[apiserver.Endpoints, apiserver.Endpoints]) {
		t.Errorf("endpoints are %v, want %v", got, want)
	}
}

// TestForward: connections of another machine reach a server of this one at the same address, and end with the way.
func TestForward(t *testing.T) {
	at, echoed := testkit.LoopbackListener(t), testkit.FreeAddress(t).String()
	go func() {
		for {
			conn, err := at.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	}()
	stop, err := forward(at.Addr().String(), func(ctx context.Context, network, _ string) (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, network, echoed)
	})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", echoed)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer := make([]byte, 2)
	if _, err := conn.Write([]byte("hi")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "hi" {
		t.Fatalf("the answer is %q, %v", answer, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(conn, answer); err == nil {
		t.Error("the connection is still open")
	}
}
