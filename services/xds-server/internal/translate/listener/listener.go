package listener

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/coreconfig"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

const (
	wildcard = "0.0.0.0"
	loopback = "127.0.0.1"

	tlsTransport = "tls"
	rawTransport = "raw_buffer"

	// interceptionMark is the SO_MARK of a TPROXY sidecar's own connections; redirection rules exempt it.
	interceptionMark = 1337
)

// socketAddress is an address to listen on: an IP address and port, or "unix://" and the path of a socket.
func socketAddress(address string, port uint32) *corev3.Address {
	if path, ok := strings.CutPrefix(address, sidecarscope.UnixSocket); ok {
		return coreconfig.Pipe(path)
	}
	return coreconfig.SocketAddress(address, port)
}

// newListener returns a listener with the settings that all have. A connection whose protocol is not detected within
// protocolDetectionTimeout is treated as TCP; by default there is no timeout.
func newListener(r *input.Reader, name, address string, port uint32, direction corev3.TrafficDirection) *listenerv3.Listener {
	timeout := r.Mesh().GetProtocolDetectionTimeout()
	if timeout == nil {
		timeout = durationpb.New(0)
	}
	address, more := inFamilies(r, address)
	var additional []*listenerv3.AdditionalAddress
	for _, a := range more {
		additional = append(additional, &listenerv3.AdditionalAddress{Address: socketAddress(a, port)})
	}
	return &listenerv3.Listener{
		Name:                             name,
		Address:                          socketAddress(address, port),
		AdditionalAddresses:              additional,
		TrafficDirection:                 direction,
		ListenerFiltersTimeout:           timeout,
		ContinueOnListenerFiltersTimeout: true,
	}
}

// alsoOnLoopback makes a listener bind the loopback address too.
func alsoOnLoopback(r *input.Reader, l *listenerv3.Listener, port uint32) {
	l.AdditionalAddresses = append(l.AdditionalAddresses,
		&listenerv3.AdditionalAddress{Address: socketAddress(r.Class().Families.Loopback(), port)})
}

// inFamilies replaces the wildcard and loopback addresses by those of the proxy's IP families.
func inFamilies(r *input.Reader, address string) (first string, more []string) {
	switch address {
	case wildcard:
		return r.Class().Families.Of(wildcard, "::")
	case loopback:
		return r.Class().Families.Of(loopback, "::1")
	default:
		return address, nil
	}
}

func tcpProxy(r *input.Reader, statPrefix, cluster string) ([]*listenerv3.Filter, error) {
	return tcpChain{proxy: &tcpproxyv3.TcpProxy{
		StatPrefix:       statPrefix,
		ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster},
	}}.filters(r)
}

// httpFilters is a filter chain of one HTTP connection manager.
func httpFilters(o hcm.Options) ([]*listenerv3.Filter, error) {
	manager, err := hcm.Build(o)
	if err != nil {
		return nil, err
	}
	return []*listenerv3.Filter{manager}, nil
}
