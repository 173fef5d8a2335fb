package normalise

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
)

func TestSidecarNames(t *testing.T) {
	made := func(proxy string, hosts ...string) *networking.Sidecar {
		return &networking.Sidecar{
			Egress: []*networking.IstioEgressListener{{Hosts: hosts}},
			OutboundTrafficPolicy: &networking.OutboundTrafficPolicy{Mode: networking.OutboundTrafficPolicy_ALLOW_ANY,
				EgressProxy: &networking.Destination{Host: proxy}},
		}
	}
	o := &object.Object{Key: object.Key{Namespace: "istio-system"}}
	got, _ := New(Config{}).sidecar(o, made("Egress.gateways.svc.cluster.local.", "./*", "~./A.example.com", "other/B.Example.Com."))
	// The namespace "." is that of each workload the Sidecar holds for, not always the Sidecar's own.
	want := made("egress.gateways.svc.cluster.local", "./*", "~./a.example.com", "other/b.example.com")
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", protojson.Format(got), protojson.Format(want))
	}
}
