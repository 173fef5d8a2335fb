package trafficpolicy_test

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/translate/trafficpolicy"
)

const rule = `{
	"host": "a", "trafficPolicy": {
		"loadBalancer": {"simple": "RANDOM"}, "tls": {"mode": "DISABLE"}, "outlierDetection": {"interval": "1s"},
		"portLevelSettings": [{"port": {"number": 80}, "loadBalancer": {"simple": "ROUND_ROBIN"}}]
	},
	"subsets": [
		{"name": "inherits"},
		{"name": "own", "trafficPolicy": {"loadBalancer": {"simple": "LEAST_REQUEST"}}},
		{"name": "port", "trafficPolicy": {"loadBalancer": {"simple": "LEAST_REQUEST"}, "portLevelSettings": [{"port": {"number": 81}, "tls": {"mode": "SIMPLE"}}]}}
	]}`

func TestForPortAndSubset(t *testing.T) {
	spec := &networking.DestinationRule{}
	if err := protojson.Unmarshal([]byte(rule), spec); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, subset string
		port         uint32
		want         string
	}{
		{"the rule's", "", 9000, `{"loadBalancer": {"simple": "RANDOM"}, "tls": {"mode": "DISABLE"}, "outlierDetection": {"interval": "1s"}}`},
		{"a port's inherits nothing", "", 80, `{"loadBalancer": {"simple": "ROUND_ROBIN"}}`},
		{"a subset without a policy", "inherits", 80, `{"loadBalancer": {"simple": "ROUND_ROBIN"}}`},
		{"a subset's fields replace one by one", "own", 9000,
			`{"loadBalancer": {"simple": "LEAST_REQUEST"}, "tls": {"mode": "DISABLE"}, "outlierDetection": {"interval": "1s"}}`},
		{"a subset's over the rule's port", "own", 80, `{"loadBalancer": {"simple": "LEAST_REQUEST"}}`},
		{"a subset's port inherits nothing", "port", 81, `{"tls": {"mode": "SIMPLE"}}`},
		{"a subset's other port", "port", 9000,
			`{"loadBalancer": {"simple": "LEAST_REQUEST"}, "tls": {"mode": "DISABLE"}, "outlierDetection": {"interval": "1s"}}`},
		{"an unknown subset is no subset", "none", 9000,
			`{"loadBalancer": {"simple": "RANDOM"}, "tls": {"mode": "DISABLE"}, "outlierDetection": {"interval": "1s"}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := &networking.TrafficPolicy{}
			if err := protojson.Unmarshal([]byte(tc.want), want); err != nil {
				t.Fatal(err)
			}
			got := trafficpolicy.For(spec, trafficpolicy.Subset(spec, tc.subset), tc.port)
			if got.GetLoadBalancer().GetSimple() != want.GetLoadBalancer().GetSimple() ||
				got.GetTls().GetMode() != want.GetTls().GetMode() || (got.GetTls() == nil) != (want.GetTls() == nil) ||
				(got.GetOutlierDetection() == nil) != (want.GetOutlierDetection() == nil) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// Port level settings have no tunnel, so they keep that of the policy.
func TestPortLevelSettingsKeepTheTunnel(t *testing.T) {
	spec := &networking.DestinationRule{}
	if err := protojson.Unmarshal([]byte(`{
		"trafficPolicy": {"tunnel": {"targetHost": "rule"}, "portLevelSettings": [{"port": {"number": 80}}]},
		"subsets": [{"name": "inherits"}, {"name": "own", "trafficPolicy": {"tunnel": {"targetHost": "subset"}, "portLevelSettings": [{"port": {"number": 80}}]}}]
	}`), spec); err != nil {
		t.Fatal(err)
	}
	for subset, want := range map[string]string{"": "rule", "inherits": "rule", "own": "subset"} {
		for _, port := range []uint32{80, 81} {
			if got := trafficpolicy.For(spec, trafficpolicy.Subset(spec, subset), port).GetTunnel().GetTargetHost(); got != want {
				t.Errorf("subset %q, port %d: %q, want %q", subset, port, got, want)
			}
		}
	}
}

func TestForWithoutRule(t *testing.T) {
	if got := trafficpolicy.For(nil, nil, 80); got == nil || got.GetTls() != nil {
		t.Errorf("got %v", got)
	}
}

func TestWithDefaults(t *testing.T) {
	mesh := &meshv1alpha1.MeshConfig{DefaultTrafficPolicy: &meshv1alpha1.MeshConfig_DefaultTrafficPolicy{
		OutlierDetection: &networking.OutlierDetection{MaxEjectionPercent: 7},
		ConnectionPool:   &networking.ConnectionPoolSettings{},
	}}
	own := &networking.TrafficPolicy{OutlierDetection: &networking.OutlierDetection{MaxEjectionPercent: 1}}
	got := trafficpolicy.WithDefaults(own, mesh)
	if got.GetOutlierDetection().GetMaxEjectionPercent() != 1 || got.GetConnectionPool() == nil {
		t.Errorf("the rule's own setting must stand and the missing one be filled in: %v", got)
	}
	if own.GetConnectionPool() != nil {
		t.Error("the user's object was changed")
	}
}
