package endpoint_test

import (
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/endpoint"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// Labels that failoverPriority compares are part of the class. The load assignment belongs to the class alone only if
// it depends on the client's own value.
func TestFailoverPriorityLabelsSplitClasses(t *testing.T) {
	const host = "a.default.svc.cluster.local"
	for _, tc := range []struct {
		name     string
		priority []string
		labels   map[string]string
		nearest  string
		reach    input.Scope
	}{
		{"no rule", nil, map[string]string{"rack": "1"}, "10.0.0.1", input.MeshScope},
		{"client in rack 1", []string{"rack"}, map[string]string{"rack": "1", "app": "x"}, "10.0.0.1", input.WorkloadScope},
		{"client in rack 2", []string{"rack"}, map[string]string{"rack": "2", "app": "y"}, "10.0.0.2", input.WorkloadScope},
		{"rack 2 for all", []string{"rack=2"}, map[string]string{"rack": "1"}, "10.0.0.2", input.MeshScope},
	} {
		t.Run(tc.name, func(t *testing.T) {
			endpoints := meshtest.Endpoints("default", host, 80, "10.0.0.1", "10.0.0.2")
			set := endpoints.GetEndpointSet()
			set.LabelSets = []*configv1.LabelSet{{Labels: map[string]string{"rack": "1"}}, {Labels: map[string]string{"rack": "2"}}}
			set.GetEndpoints()[1].LabelSet = 1
			resources := []*configv1.Resource{meshtest.Service("default", host, 80), endpoints}
			if tc.priority != nil {
				resources = append(resources, meshtest.Config(mesh.KindDestinationRule, "default", "a", &networking.DestinationRule{
					Host: host, TrafficPolicy: &networking.TrafficPolicy{
						OutlierDetection: &networking.OutlierDetection{},
						LoadBalancer: &networking.LoadBalancerSettings{
							LocalityLbSetting: &networking.LocalityLoadBalancerSetting{FailoverPriority: tc.priority},
						},
					},
				}))
			}
			state := meshtest.State(t, resources...)
			key := &class.Key{Type: class.Sidecar, Namespace: "client", Labels: state.RelevantLabels("client", tc.labels)}
			if _, ok := key.Labels["app"]; ok {
				t.Error("a label that nothing tests makes classes")
			}
			r := input.NewView(key, state).Reader()
			m, err := endpoint.Translator{}.Build(r, resourcename.OutboundCluster(80, "", host))
			if err != nil || m == nil {
				t.Fatalf("%v, %v", m, err)
			}
			first := m.(*endpointv3.ClusterLoadAssignment).GetEndpoints()[0]
			if got := first.GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetAddress(); got != tc.nearest ||
				first.GetPriority() != 0 {
				t.Errorf("%s comes first, want %s", got, tc.nearest)
			}
			if r.Scope() != tc.reach {
				t.Errorf("holds for %v, want %v", r.Scope(), tc.reach)
			}
		})
	}
}
