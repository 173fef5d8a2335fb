package normalise

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

func TestSidecarNames(t *testing.T) {
	got := sidecar(decoded(t, `{
		egress: [{hosts: ["./*", "~./A.example.com", "other/B.Example.Com."]}],
		outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: "Egress.gateways.svc.cluster.local."}}}`, &networking.Sidecar{}),
		"istio-system", "cluster.local")
	// The namespace "." is that of each workload the Sidecar holds for, not always the Sidecar's own.
	want := decoded(t, `{
		egress: [{hosts: ["./*", "~./a.example.com", "other/b.example.com"]}],
		outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: "egress.gateways.svc.cluster.local"}}}`, &networking.Sidecar{})
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", protojson.Format(got), protojson.Format(want))
	}
}
