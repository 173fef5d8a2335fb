package cluster

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/inbound"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

// never is the longest clean-up interval that does not overflow Envoy's milliseconds. An inbound cluster has one host,
// which must not be cleaned up.
const never = 100 * 365 * 24 * time.Hour

// inboundCluster builds the cluster of a port of the application. Redirected connections go on to their original
// destination, so the application sees what it would see without a proxy; connections to a listener that binds the port
// go to the application's default endpoint.
func inboundCluster(r *input.Reader, name resourcename.Cluster) (*clusterv3.Cluster, error) {
	if r.Class().Type != class.Sidecar {
		return nil, nil
	}
	ports, err := inbound.Ports(r)
	if err != nil {
		return nil, err
	}
	for _, port := range ports {
		if port.Number == name.Port && name == (resourcename.Cluster{Direction: resourcename.DirectionInbound, Port: name.Port}) {
			return toApplication(r, name.String(), port)
		}
	}
	return nil, nil
}

func toApplication(r *input.Reader, name string, port inbound.Port) (*clusterv3.Cluster, error) {
	out := &clusterv3.Cluster{Name: name, AltStatName: inboundAltStatName(r, port), CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{}}
	options := &httpOptions{protocol: upstreamFor(port.Protocol, true), keepCase: keepsCase(r, port.Protocol)}
	connectionPool(out, options, r.Mesh(), inbound.Pool(r, port))
	if upgraded := networking.ConnectionPoolSettings_HTTPSettings_UPGRADE; port.ConnectionPool.GetHttp().GetH2UpgradePolicy() == upgraded {
		// Only the Sidecar's setting counts: that of a DestinationRule is about the clients' connections.
		options.protocol = http2
	}
	if port.To.Address == "" && port.To.Pipe == "" {
		out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}
		out.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		out.CleanupInterval = durationpb.New(never)
		if port.To.Port != 0 {
			out.LbConfig = &clusterv3.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{
				UpstreamPortOverride: wrapperspb.UInt32(port.To.Port),
			}}
		}
		if r.Class().Interception == class.Redirect {
			out.UpstreamBindConfig = bindSource(r)
		}
	} else {
		out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		out.LoadAssignment = &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: applicationAddress(port.To)}},
			}}}},
		}
	}
	return out, options.apply(out)
}

func applicationAddress(to inbound.Destination) *corev3.Address {
	if to.Pipe != "" {
		return coreconfig.Pipe(to.Pipe)
	}
	return coreconfig.SocketAddress(to.Address, to.Port)
}
