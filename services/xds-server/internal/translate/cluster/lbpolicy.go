package cluster

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/translate/trafficpolicy"
)

// lbPolicy sets the load balancing policy: least requests, unless the traffic policy has another.
func lbPolicy(out *clusterv3.Cluster, in *networking.LoadBalancerSettings) {
	if out.GetType() == clusterv3.Cluster_ORIGINAL_DST {
		out.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
	}
	if out.GetLbPolicy() == clusterv3.Cluster_CLUSTER_PROVIDED {
		return
	}
	if hash := in.GetConsistentHash(); hash != nil {
		consistentHash(out, hash)
		return
	}
	switch in.GetSimple() {
	case networking.LoadBalancerSettings_RANDOM:
		out.LbPolicy = clusterv3.Cluster_RANDOM
	case networking.LoadBalancerSettings_ROUND_ROBIN:
		out.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
		if start := slowStart(in); start != nil {
			out.LbConfig = &clusterv3.Cluster_RoundRobinLbConfig_{
				RoundRobinLbConfig: &clusterv3.Cluster_RoundRobinLbConfig{SlowStartConfig: start},
			}
		}
	default:
		out.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
		if start := slowStart(in); start != nil {
			out.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{
				LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{SlowStartConfig: start},
			}
		}
	}
}

func slowStart(in *networking.LoadBalancerSettings) *clusterv3.Cluster_SlowStartConfig {
	if warmup := in.GetWarmup(); warmup != nil {
		out := &clusterv3.Cluster_SlowStartConfig{SlowStartWindow: warmup.GetDuration()}
		if v := warmup.GetAggression(); v != nil {
			out.Aggression = &corev3.RuntimeDouble{DefaultValue: v.GetValue(), RuntimeKey: "aggression"}
		}
		if v := warmup.GetMinimumPercent(); v != nil {
			out.MinWeightPercent = &typev3.Percent{Value: v.GetValue()}
		}
		return out
	}
	if window := in.GetWarmupDurationSecs(); window != nil { //nolint:staticcheck // deprecated in Istio, still accepted
		return &clusterv3.Cluster_SlowStartConfig{SlowStartWindow: window}
	}
	return nil
}

func consistentHash(out *clusterv3.Cluster, in *networking.LoadBalancerSettings_ConsistentHashLB) {
	if maglev := in.GetMaglev(); maglev != nil {
		out.LbPolicy = clusterv3.Cluster_MAGLEV
		if size := maglev.GetTableSize(); size > 0 {
			out.LbConfig = &clusterv3.Cluster_MaglevLbConfig_{
				MaglevLbConfig: &clusterv3.Cluster_MaglevLbConfig{TableSize: wrapperspb.UInt64(size)},
			}
		}
		return
	}
	out.LbPolicy = clusterv3.Cluster_RING_HASH
	out.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{
		RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{MinimumRingSize: wrapperspb.UInt64(trafficpolicy.RingSize(in))},
	}
}
