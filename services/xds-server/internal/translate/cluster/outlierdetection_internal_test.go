package cluster

import (
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
)

// TestOneHostIsEjectedUnlessAShareIsSaid: a locality with one host fails over only if that host may be ejected.
func TestOneHostIsEjectedUnlessAShareIsSaid(t *testing.T) {
	for percent, want := range map[int32]bool{0: true, 10: false, 100: false} {
		out := &clusterv3.Cluster{CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{}}
		outlierDetection(out, &httpOptions{}, &networking.OutlierDetection{MaxEjectionPercent: percent})
		if got := out.GetOutlierDetection().GetAlwaysEjectOneHost().GetValue(); got != want {
			t.Errorf("maxEjectionPercent %d: one host is always ejected: %v", percent, got)
		}
	}
}
