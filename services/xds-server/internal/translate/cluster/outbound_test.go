package cluster_test

import (
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// A service's own address maps the port; a server is called on its target port.
func TestOriginalDestinationKeepsOrOverridesThePort(t *testing.T) {
	for name, tc := range map[string]struct {
		addresses []string
		change    func(*configv1.Service)
		want      uint32
	}{
		"an address of the cluster": {[]string{"10.0.0.1"}, func(*configv1.Service) {}, 0},
		"no address":                {nil, func(*configv1.Service) {}, 8080},
		"the servers' addresses": {nil, func(s *configv1.Service) {
			s.Resolution, s.Headless = configv1.Resolution_RESOLUTION_PASSTHROUGH,
				true
		}, 8080},
		"any address, resolution NONE": {[]string{"10.0.0.0/24"},
			func(s *configv1.Service) { s.Resolution = configv1.Resolution_RESOLUTION_PASSTHROUGH }, 8080},
	} {
		t.Run(name, func(t *testing.T) {
			state := meshtest.State(t,
				service("a.svc", 80, configv1.Protocol_PROTOCOL_HTTP, tc.addresses, func(s *configv1.Service) { s.Ports[0].TargetPort = 8080 },
					tc.change),
				meshtest.Config(mesh.KindDestinationRule, "default", "a",
					&networking.DestinationRule{Host: "a.svc", TrafficPolicy: &networking.TrafficPolicy{
						LoadBalancer: &networking.LoadBalancerSettings{
							LbPolicy: &networking.LoadBalancerSettings_Simple{Simple: networking.LoadBalancerSettings_PASSTHROUGH}},
					}}))
			key := &class.Key{Type: class.Sidecar, Namespace: "default", Interception: class.Redirect}
			got := build(t, input.NewView(key, state).Reader(), "outbound|80||a.svc")
			if port := got.GetOriginalDstLbConfig().GetUpstreamPortOverride().GetValue(); got.GetType() != clusterv3.Cluster_ORIGINAL_DST ||
				port != tc.want {
				t.Errorf("port %d of a cluster of type %v, want %d of ORIGINAL_DST", port, got.GetType(), tc.want)
			}
		})
	}
}
