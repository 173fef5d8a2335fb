package cluster

import (
	"math"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// positive returns nil for 0, which means "not set" in Istio's API.
func positive(n int32) *wrapperspb.UInt32Value {
	if n <= 0 {
		return nil
	}
	return wrapperspb.UInt32(uint32(n))
}

// circuitBreakers applies the limits of a connection pool. A limit that is not set is unlimited: Envoy's defaults
// (1024, and 3 retries) would fail requests while many endpoints change at once.
func circuitBreakers(pool *networking.ConnectionPoolSettings) *clusterv3.CircuitBreakers {
	or := func(v *wrapperspb.UInt32Value) *wrapperspb.UInt32Value {
		if v == nil {
			return wrapperspb.UInt32(math.MaxUint32)
		}
		return v
	}
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     or(positive(pool.GetTcp().GetMaxConnections())),
		MaxPendingRequests: or(positive(pool.GetHttp().GetHttp1MaxPendingRequests())),
		MaxRequests:        or(positive(pool.GetHttp().GetHttp2MaxRequests())),
		MaxRetries:         or(positive(pool.GetHttp().GetMaxRetries())),
		TrackRemaining:     true,
	}}}
}

// connectionPool applies connection pool settings to an inbound or outbound cluster. The connect timeout defaults to
// that of the mesh (MeshConfig.connectTimeout, which config-watcher always sets).
func connectionPool(out *clusterv3.Cluster, options *httpOptions, mesh *meshv1alpha1.MeshConfig, pool *networking.ConnectionPoolSettings) {
	tcp, http := pool.GetTcp(), pool.GetHttp()
	out.CircuitBreakers = circuitBreakers(pool)
	out.ConnectTimeout = mesh.GetConnectTimeout()
	if tcp.GetConnectTimeout() != nil {
		out.ConnectTimeout = tcp.GetConnectTimeout()
	}
	out.UpstreamConnectionOptions = keepalive(mesh.GetTcpKeepalive(), tcp.GetTcpKeepalive())

	if idle := http.GetIdleTimeout(); idle != nil {
		options.commonOptions().IdleTimeout = idle
	} else if idle := tcp.GetIdleTimeout(); idle != nil {
		options.commonOptions().IdleTimeout = idle
	}
	if v := positive(http.GetMaxRequestsPerConnection()); v != nil {
		options.commonOptions().MaxRequestsPerConnection = v
	}
	if v := tcp.GetMaxConnectionDuration(); v != nil {
		options.commonOptions().MaxConnectionDuration = v
	}
	if v := positive(http.GetMaxConcurrentStreams()); v != nil {
		options.http2Options().MaxConcurrentStreams = v
	}
	if ping := http.GetHttp2KeepAlive(); ping != nil {
		options.http2Options().ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: ping.GetInterval(), Timeout: ping.GetTimeout()}
	}
	if http.GetUseClientProtocol() {
		options.protocol = downstreamProtocol
	}
}

// keepalive merges the settings of the traffic policy over those of the mesh.
func keepalive(mesh, own *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive) *clusterv3.UpstreamConnectionOptions {
	if mesh == nil && own == nil {
		return nil
	}
	out := &corev3.TcpKeepalive{}
	for _, settings := range []*networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive{mesh, own} {
		if n := settings.GetProbes(); n > 0 {
			out.KeepaliveProbes = wrapperspb.UInt32(n)
		}
		if t := settings.GetTime().GetSeconds(); t > 0 {
			out.KeepaliveTime = wrapperspb.UInt32(uint32(t)) //nolint:gosec // positive, and no user means a century
		}
		if t := settings.GetInterval().GetSeconds(); t > 0 {
			out.KeepaliveInterval = wrapperspb.UInt32(uint32(t)) //nolint:gosec // as above
		}
	}
	return &clusterv3.UpstreamConnectionOptions{TcpKeepalive: out}
}
