package listener

import (
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// A connection has one tunnel setting, whichever destination it goes to.
func TestWeightedDestinationsShareOneTunnel(t *testing.T) {
	const host = "proxy.default.svc.cluster.local"
	tunnel := func(target string) *networking.TrafficPolicy {
		return &networking.TrafficPolicy{Tunnel: &networking.TrafficPolicy_TunnelSettings{TargetHost: target, TargetPort: 443}}
	}
	state := meshtest.State(t, meshtest.Service("default", host, 3128),
		meshtest.Config(mesh.KindDestinationRule, "default", "proxy", &networking.DestinationRule{Host: host, Subsets: []*networking.Subset{
			{Name: "a", TrafficPolicy: tunnel("a.example.com")}, {Name: "same", TrafficPolicy: tunnel("a.example.com")},
			{Name: "b", TrafficPolicy: tunnel("b.example.com")}, {Name: "none"},
		}}))
	r := input.NewView(&class.Key{Type: class.Sidecar, Namespace: "default", Interception: class.Redirect}, state).Reader()
	for second, ok := range map[string]bool{"same": true, "b": false, "none": false} {
		_, err := toDestinations(r, []*networking.RouteDestination{
			{Destination: &networking.Destination{Host: host, Subset: "a"}, Weight: 50},
			{Destination: &networking.Destination{Host: host, Subset: second}, Weight: 50},
		}, matchContext{port: 3128})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "route[1].destination: has another trafficPolicy.tunnel") {
			t.Errorf("with %s: %v", second, err)
		}
	}
}
