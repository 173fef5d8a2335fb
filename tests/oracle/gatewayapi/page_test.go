package gatewayapi

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// TestPage holds the page of differences.
func TestPage(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(`# The Gateway API: differences from Istio

The inputs of Istio's tests of its Gateway API translation go to istiod and to Fairlead, through one API server.
` + "`make oracle`" + ` compares the statuses, and the answers of stock Envoys of both to the same requests: HTTP, gRPC, TLS
and TCP, derived from each listener and route. A difference needs a row here. ` + "`Programmed`" + ` is not compared: in
Istio it means that the Service has an address, here that every gateway has acknowledged
([guide](../guide/gateway-api-objects.md)). Messages are not compared either, and the mesh has no waypoints. Written by
the test (` + "`-run TestPage -update`" + `).

| what | Istio | Fairlead | why |
|---|---|---|---|
`)
	for _, d := range differences {
		b.WriteString("| " + d.what + " | " + d.istio + " | " + d.here + " | " + d.reason + " |\n")
	}
	testkit.Golden(t, "../../../docs/reference/gateway-api-differences.md", []byte(b.String()))
}
