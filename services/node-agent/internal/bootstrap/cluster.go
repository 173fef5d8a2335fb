package bootstrap

import (
	"net/netip"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// httpOptions is the key of HttpProtocolOptions in a cluster.
const httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// clusters are the four static clusters on this machine.
func clusters(in Input) ([]*clusterv3.Cluster, error) {
	xds, err := grpcCluster(XDSCluster, in.XDSPath)
	if err != nil {
		return nil, err
	}
	sds, err := grpcCluster(SDSCluster, in.SDSPath)
	if err != nil {
		return nil, err
	}
	return []*clusterv3.Cluster{
		xds,
		sds,
		staticCluster(AgentCluster, socketAddress(reachable(in.Status))),
		staticCluster(StatsCluster, pipe(in.AdminPath, 0)),
	}, nil
}

func staticCluster(name string, address *corev3.Address) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(time.Second),
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{
				LbEndpoints: []*endpointv3.LbEndpoint{{
					HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
				}},
			}},
		},
	}
}

// grpcCluster is a cluster of HTTP/2 with keepalive, by which Envoy notices an agent that hangs.
func grpcCluster(name, path string) (*clusterv3.Cluster, error) {
	options, err := http2()
	if err != nil {
		return nil, err
	}
	c := staticCluster(name, pipe(path, 0))
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: options}
	// Each secret is a stream of its own; the default limit is 1,024 requests.
	c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     wrapperspb.UInt32(1000),
		MaxPendingRequests: wrapperspb.UInt32(100000),
		MaxRequests:        wrapperspb.UInt32(100000),
	}}}
	return c, nil
}

// reachable returns the address to connect to for a server that listens on a.
func reachable(a netip.AddrPort) netip.AddrPort {
	switch {
	case !a.Addr().IsUnspecified():
		return a
	case a.Addr().Is6():
		return netip.AddrPortFrom(netip.IPv6Loopback(), a.Port())
	default:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), a.Port())
	}
}

// http2 are the options of a cluster whose servers speak HTTP/2, with keepalive.
func http2() (*anypb.Any, error) {
	return pack(&httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
						ConnectionKeepalive: &corev3.KeepaliveSettings{
							Interval: durationpb.New(30 * time.Second),
							Timeout:  durationpb.New(10 * time.Second),
						},
					},
				},
			},
		},
	})
}
