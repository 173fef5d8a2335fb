// Package trafficpolicy resolves the traffic policy of a DestinationRule for one port of a service or of a subset
// (For), with the defaults of MeshConfig (WithDefaults) and a Service's sessionAffinity (WithAffinity).
package trafficpolicy

import (
	"cmp"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// Subset returns the rule's subset of that name, or nil.
func Subset(rule *networking.DestinationRule, name string) *networking.Subset {
	if name == "" {
		return nil
	}
	for _, subset := range rule.GetSubsets() {
		if subset.GetName() == name {
			return subset
		}
	}
	return nil
}

// For returns the policy of a port, or of the subset's port if subset is not nil. rule may be nil; the result is never
// nil and must not be changed. Port level settings replace all settings above them, including those that they leave
// out; settings of a subset replace the rule's one by one (TrafficPolicy in Istio's DestinationRule reference).
func For(rule *networking.DestinationRule, subset *networking.Subset, port uint32) *networking.TrafficPolicy {
	out, _ := atPort(rule.GetTrafficPolicy(), port)
	if subset.GetTrafficPolicy() != nil {
		overlay, replaces := atPort(subset.GetTrafficPolicy(), port)
		out = merge(out, overlay, replaces)
	}
	if out == nil {
		return &networking.TrafficPolicy{}
	}
	return out
}

// WithDefaults adds the settings of MeshConfig.defaultTrafficPolicy that the policy leaves out.
func WithDefaults(policy *networking.TrafficPolicy, mesh *meshv1alpha1.MeshConfig) *networking.TrafficPolicy {
	defaults := mesh.GetDefaultTrafficPolicy()
	missing := &networking.TrafficPolicy{}
	if policy.GetConnectionPool() == nil {
		missing.ConnectionPool = defaults.GetConnectionPool()
	}
	if policy.GetOutlierDetection() == nil {
		missing.OutlierDetection = defaults.GetOutlierDetection()
	}
	if missing.ConnectionPool == nil && missing.OutlierDetection == nil {
		return policy
	}
	return merge(policy, missing, false)
}

// byClient hashes the client's address.
var byClient = &networking.LoadBalancerSettings{LbPolicy: &networking.LoadBalancerSettings_ConsistentHash{
	ConsistentHash: &networking.LoadBalancerSettings_ConsistentHashLB{
		HashKey: &networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp{UseSourceIp: true}},
}}

// WithAffinity adds the consistent hash for a Kubernetes Service with sessionAffinity ClientIP, unless the policy has a
// load balancing setting.
func WithAffinity(policy *networking.TrafficPolicy, svc *configv1.Service) *networking.TrafficPolicy {
	if !svc.GetSessionAffinityClientIp() || policy.GetLoadBalancer().GetLbPolicy() != nil {
		return policy
	}
	balance := byClient
	if policy.GetLoadBalancer() != nil {
		balance = proto.CloneOf(policy.GetLoadBalancer())
		balance.LbPolicy = byClient.LbPolicy
	}
	return merge(policy, &networking.TrafficPolicy{LoadBalancer: balance}, false)
}

// ConsistentHash returns the policy's consistent hash settings, or nil.
func ConsistentHash(policy *networking.TrafficPolicy) *networking.LoadBalancerSettings_ConsistentHashLB {
	return policy.GetLoadBalancer().GetConsistentHash()
}

// RingSize returns the least size of the ring of a consistent hash; Istio's default is 1024.
func RingSize(hash *networking.LoadBalancerSettings_ConsistentHashLB) uint64 {
	//nolint:staticcheck // the second is deprecated in Istio and still accepted
	return cmp.Or(hash.GetRingHash().GetMinimumRingSize(), hash.GetMinimumRingSize(), 1024)
}

func atPort(policy *networking.TrafficPolicy, port uint32) (out *networking.TrafficPolicy, replaces bool) {
	for _, settings := range policy.GetPortLevelSettings() {
		if settings.GetPort().GetNumber() == port {
			return &networking.TrafficPolicy{
				LoadBalancer:     settings.GetLoadBalancer(),
				ConnectionPool:   settings.GetConnectionPool(),
				OutlierDetection: settings.GetOutlierDetection(),
				Tls:              settings.GetTls(),
				Tunnel:           policy.GetTunnel(), // not the port's to replace
			}, true
		}
	}
	return policy, false
}

func merge(base, overlay *networking.TrafficPolicy, replaces bool) *networking.TrafficPolicy {
	if base == nil {
		base = &networking.TrafficPolicy{}
	}
	out := &networking.TrafficPolicy{
		LoadBalancer:     base.GetLoadBalancer(),
		ConnectionPool:   base.GetConnectionPool(),
		OutlierDetection: base.GetOutlierDetection(),
		Tls:              base.GetTls(),
		Tunnel:           base.GetTunnel(),
		ProxyProtocol:    base.GetProxyProtocol(),
		RetryBudget:      base.GetRetryBudget(),
	}
	if v := overlay.GetLoadBalancer(); v != nil || replaces {
		out.LoadBalancer = v
	}
	if v := overlay.GetConnectionPool(); v != nil || replaces {
		out.ConnectionPool = v
	}
	if v := overlay.GetOutlierDetection(); v != nil || replaces {
		out.OutlierDetection = v
	}
	if v := overlay.GetTls(); v != nil || replaces {
		out.Tls = v
	}
	if v := overlay.GetTunnel(); v != nil {
		out.Tunnel = v
	}
	if v := overlay.GetProxyProtocol(); v != nil {
		out.ProxyProtocol = v
	}
	if v := overlay.GetRetryBudget(); v != nil {
		out.RetryBudget = v
	}
	return out
}
