package proxyless

import (
	"math"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	leastrequestv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	roundrobinv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	wrrlocalityv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/wrr_locality/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/discovery"
	"fairlead.dev/services/xds-server/internal/translate/endpoint"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/trafficpolicy"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// maxRingSize is the largest ring that gRPC accepts.
const maxRingSize = 8 << 20

// cluster builds the cluster of a service port or of one of its subsets.
func cluster(r *input.Reader, name string) (*clusterv3.Cluster, error) {
	c, ok := resolve(r, name)
	if !ok {
		return nil, nil
	}
	out := &clusterv3.Cluster{Name: name, CircuitBreakers: circuitBreakers(c.Policy.GetConnectionPool())}
	switch c.Kind {
	case discovery.StrictDNS, discovery.LogicalDNS:
		if !logicalDNS(r, out, c) {
			return nil, nil
		}
	default:
		out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		out.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{ServiceName: name, EdsConfig: coreconfig.ADS()}
	}
	lbPolicy(out, c.Policy)
	socket, err := clientTLS(r, c)
	if err != nil {
		return nil, err
	}
	out.TransportSocket = socket
	return out, nil
}

// endpoints builds the load assignment of an EDS cluster.
func endpoints(r *input.Reader, name string) (*endpointv3.ClusterLoadAssignment, error) {
	c, ok := resolve(r, name)
	if !ok || c.Kind == discovery.StrictDNS || c.Kind == discovery.LogicalDNS {
		return nil, nil
	}
	return endpoint.Assignment(r, c), nil
}

func resolve(r *input.Reader, name string) (discovery.Cluster, bool) {
	parsed, ok := resourcename.ParseCluster(name)
	if !ok || parsed.Direction != resourcename.DirectionOutbound {
		return discovery.Cluster{}, false
	}
	return discovery.Resolve(r, parsed)
}

// logicalDNS makes the cluster resolve a DNS name, and reports false if it has none. gRPC accepts one name per cluster,
// so the first of a service's names is used.
func logicalDNS(r *input.Reader, out *clusterv3.Cluster, c discovery.Cluster) bool {
	for _, l := range endpoint.Assignment(r, c).GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			if e.GetEndpoint().GetAddress().GetSocketAddress() == nil {
				continue
			}
			out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
			out.LoadAssignment = &endpointv3.ClusterLoadAssignment{
				ClusterName: out.GetName(),
				Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
					HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: e.GetEndpoint().GetAddress()}},
				}}}},
			}
			return true
		}
	}
	return false
}

// circuitBreakers applies the connection pool's limit of requests. Without one there is no limit: gRPC's default is
// 1024.
func circuitBreakers(pool *networking.ConnectionPoolSettings) *clusterv3.CircuitBreakers {
	limit := uint32(math.MaxUint32)
	if n := pool.GetHttp().GetHttp2MaxRequests(); n > 0 {
		limit = uint32(n)
	}
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{MaxRequests: wrapperspb.UInt32(limit)}}}
}

// lbPolicy chooses a load balancing policy that gRPC supports: ring hash for consistent hashes of any kind, least
// request if the DestinationRule asks for it, or else round robin, as Istio does for gRPC.
func lbPolicy(out *clusterv3.Cluster, p *networking.TrafficPolicy) {
	if hash := trafficpolicy.ConsistentHash(p); hash != nil {
		out.LbPolicy = clusterv3.Cluster_RING_HASH
		out.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{
			RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
				MinimumRingSize: wrapperspb.UInt64(min(trafficpolicy.RingSize(hash), maxRingSize))},
		}
		return
	}
	out.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	switch p.GetLoadBalancer().GetSimple() {
	case networking.LoadBalancerSettings_LEAST_REQUEST, networking.LoadBalancerSettings_LEAST_CONN: //nolint:staticcheck // as above
		// gRPC uses the first policy that it supports, and rejects a cluster with none.
		out.LoadBalancingPolicy = policies(
			choice("envoy.load_balancing_policies.least_request", &leastrequestv3.LeastRequest{}),
			choice("envoy.load_balancing_policies.wrr_locality", &wrrlocalityv3.WrrLocality{
				EndpointPickingPolicy: policies(choice("envoy.load_balancing_policies.round_robin", &roundrobinv3.RoundRobin{})),
			}),
		)
	default:
	}
}

func policies(list ...*clusterv3.LoadBalancingPolicy_Policy) *clusterv3.LoadBalancingPolicy {
	return &clusterv3.LoadBalancingPolicy{Policies: list}
}

func choice(name string, config proto.Message) *clusterv3.LoadBalancingPolicy_Policy {
	return &clusterv3.LoadBalancingPolicy_Policy{TypedExtensionConfig: &corev3.TypedExtensionConfig{Name: name,
		TypedConfig: typedconfig.Any(config)}}
}
