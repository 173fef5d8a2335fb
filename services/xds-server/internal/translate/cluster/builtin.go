package cluster

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
)

const (
	// passthroughSource and passthroughSourceV6 are the source addresses of a sidecar's connections to its own
	// application; redirection rules exempt them.
	passthroughSource, passthroughSourceV6 = "127.0.0.6", "::6"
	// passthroughIdle closes idle connections to unknown destinations.
	passthroughIdle = 5 * time.Minute
)

// builtinNames lists the clusters that do not depend on services.
func builtinNames(key class.Common) []string {
	switch {
	case key.Type == class.Router:
		return []string{resourcename.BlackHoleCluster}
	case key.Interception == class.None:
		// Without redirection there is no original destination, but routes refer to this cluster: their requests fail
		// in the proxy, which logs the reason.
		return []string{resourcename.BlackHoleCluster, resourcename.PassthroughCluster}
	default:
		return []string{resourcename.BlackHoleCluster, resourcename.PassthroughCluster, resourcename.InboundPassthroughCluster}
	}
}

func builtinCluster(r *input.Reader, name string) (*clusterv3.Cluster, error) {
	out := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       r.Mesh().GetConnectTimeout(),
	}
	if name == resourcename.BlackHoleCluster {
		return out, nil
	}
	out.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}
	out.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
	out.CircuitBreakers = circuitBreakers(nil)
	options := httpOptions{protocol: downstreamProtocol, keepCase: r.ProxyHeaders().GetPreserveHttp1HeaderCase().GetValue(),
		common: &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(passthroughIdle)}}
	if err := options.apply(out); err != nil {
		return nil, err
	}
	if name == resourcename.InboundPassthroughCluster && r.Class().Interception == class.Redirect {
		out.UpstreamBindConfig = bindSource(r)
	}
	return out, nil
}

func bindSource(r *input.Reader) *corev3.BindConfig {
	source := func(address string) *corev3.SocketAddress {
		return &corev3.SocketAddress{Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0}}
	}
	first, more := r.Class().Families.Of(passthroughSource, passthroughSourceV6)
	out := &corev3.BindConfig{SourceAddress: source(first)}
	for _, a := range more {
		out.ExtraSourceAddresses = append(out.ExtraSourceAddresses, &corev3.ExtraSourceAddress{Address: source(a)})
	}
	return out
}
