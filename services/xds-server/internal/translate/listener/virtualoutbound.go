package listener

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

// virtualOutbound accepts all redirected outbound connections and hands each to the listener of its original
// destination. Without such a listener its last filter chain forwards the connection.
func virtualOutbound(r *input.Reader) (*listenerv3.Listener, error) {
	port := uint32(r.Mesh().GetProxyListenPort())
	out := newListener(r, resourcename.VirtualOutbound, wildcard, port, corev3.TrafficDirection_OUTBOUND)
	out.UseOriginalDst = wrapperspb.Bool(true)
	out.Transparent = transparent(r)
	hole, err := blackhole(r, "virtualOutbound-blackhole", port)
	if err != nil {
		return nil, err
	}
	catchAll, err := passthroughChain(r, "virtualOutbound-catchall-tcp")
	if r.Class().OnDemand {
		catchAll.Filters, err = onDemandTCP(r, resourcename.OnDemandTCPFormat)
	}
	if err != nil {
		return nil, err
	}
	out.FilterChains = []*listenerv3.FilterChain{hole, catchAll}
	return out, nil
}

// passthroughChain forwards connections to unknown destinations, by outboundTrafficPolicy.
func passthroughChain(r *input.Reader, name string) (*listenerv3.FilterChain, error) {
	cluster := sidecarscope.UnknownDestinationCluster(r)
	filters, err := tcpProxy(r, cluster, cluster)
	if err != nil {
		return nil, err
	}
	return &listenerv3.FilterChain{Name: name, Filters: filters}, nil
}

// blackhole drops connections to the redirection port itself, which would be forwarded to it again.
func blackhole(r *input.Reader, name string, port uint32) (*listenerv3.FilterChain, error) {
	filters, err := tcpProxy(r, resourcename.BlackHoleCluster, resourcename.BlackHoleCluster)
	if err != nil {
		return nil, err
	}
	return &listenerv3.FilterChain{
		Name:             name,
		FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(port)},
		Filters:          filters,
	}, nil
}

func transparent(r *input.Reader) *wrapperspb.BoolValue {
	if r.Class().Interception == class.TProxy {
		return wrapperspb.Bool(true)
	}
	return nil
}
