package listener

import (
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/inbound"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/route"
	"fairlead.dev/services/xds-server/internal/translate/tlsctx"
)

// chainKind is a kind of connection that an inbound port accepts: its transport protocol and ALPN, whether the proxy
// terminates mesh mTLS, and whether it carries HTTP. Each kind has a filter chain.
type chainKind struct {
	transport string
	alpn      []string
	mtls      bool
	http      bool
	// tls is the Sidecar's own server certificate for callers from outside the mesh, or nil.
	tls *networking.ServerTLSSettings
}

// chainKinds lists the kinds for a protocol and a PeerAuthentication mode. On a port of undeclared protocol, the ALPN
// of a mesh client tells whether it carries HTTP, and for plaintext the HTTP inspector does. PERMISSIVE ports also
// accept TLS that is not the mesh's, for the application to terminate.
func chainKinds(p configv1.Protocol, mode input.MTLSMode) []chainKind {
	http := contract.IsHTTP(p)
	if protocol.IsSniffed(p) {
		return sniffedChainKinds(mode)
	}
	strict := chainKind{transport: tlsTransport, mtls: true, http: http}
	plain := chainKind{transport: rawTransport, http: http}
	switch mode {
	case input.Strict:
		return []chainKind{strict}
	case input.Disable:
		if http {
			return []chainKind{plain}
		}
		// No inspection: the server may be the one to send the first bytes.
		return []chainKind{{}}
	default:
		strict.alpn = tlsctx.MeshAny
		if http {
			return []chainKind{strict, plain}
		}
		return []chainKind{strict, plain, {transport: tlsTransport}}
	}
}

// chainKindsOf is chainKinds for a port. If a Sidecar has its own certificate for callers from outside the mesh, and
// PeerAuthentication allows such callers, they have to use TLS.
func chainKindsOf(r *input.Reader, port inbound.Port) []chainKind {
	mode := r.InboundMTLS(port.Number)
	if port.TLS == nil || mode == input.Strict {
		return chainKinds(port.Protocol, mode)
	}
	http := contract.IsHTTP(port.Protocol) || port.Protocol == configv1.Protocol_PROTOCOL_HTTPS
	outside := chainKind{transport: tlsTransport, http: http, tls: port.TLS}
	if mode == input.Disable {
		return []chainKind{outside}
	}
	return []chainKind{{transport: tlsTransport, alpn: tlsctx.MeshAny, mtls: true, http: http}, outside}
}

func sniffedChainKinds(mode input.MTLSMode) []chainKind {
	meshHTTP := chainKind{transport: tlsTransport, alpn: tlsctx.MeshHTTP, mtls: true, http: true}
	plainWeb := chainKind{transport: rawTransport, alpn: plainHTTP, http: true}
	plain := chainKind{transport: rawTransport}
	switch mode {
	case input.Strict:
		return []chainKind{meshHTTP, {transport: tlsTransport, mtls: true}}
	case input.Disable:
		return []chainKind{plainWeb, plain, {transport: tlsTransport}}
	default:
		return []chainKind{
			meshHTTP, plainWeb, {transport: tlsTransport, alpn: tlsctx.MeshTCP, mtls: true}, plain, {transport: tlsTransport},
		}
	}
}

// needs are the inspectors that the filter chains of a port need.
type needs struct{ tls, http bool }

func needsOf(chainKinds []chainKind) needs {
	var out needs
	for _, v := range chainKinds {
		out.tls = out.tls || v.transport != ""
		out.http = out.http || v.http && !v.mtls && len(v.alpn) > 0
	}
	return out
}

// inboundDestination is the cluster of a port's inbound filter chains, with the settings of the chains.
type inboundDestination struct {
	name      string
	cluster   string
	port      uint32
	declared  uint32
	grpcWeb   bool
	operation string
	pool      *networking.ConnectionPoolSettings
	// destinationPort limits the chains of virtualInbound to one port; 0 for a listener of its own, and for all
	// undeclared ports.
	destinationPort uint32
	// catchAll marks the chains of undeclared ports, whose names are fixed.
	catchAll bool
}

func (t inboundDestination) chainName(http bool) string {
	switch {
	case t.catchAll && http:
		return "virtualInbound-catchall-http"
	case t.catchAll:
		return resourcename.VirtualInbound
	default:
		return t.name
	}
}

func (t inboundDestination) statPrefix() string {
	if t.catchAll {
		return t.cluster
	}
	return "inbound_" + t.name
}

// chains builds the filter chains of a port, one per kind of connection.
func chains(r *input.Reader, t inboundDestination, kinds []chainKind) ([]*listenerv3.FilterChain, error) {
	trust := tlsctx.NewTrust(r.Class().TrustDomain, r.Mesh().GetTrustDomainAliases())
	var out []*listenerv3.FilterChain
	for _, v := range kinds {
		chain := &listenerv3.FilterChain{
			Name:             t.chainName(v.http),
			FilterChainMatch: &listenerv3.FilterChainMatch{TransportProtocol: v.transport, ApplicationProtocols: v.alpn},
		}
		if t.destinationPort != 0 {
			chain.FilterChainMatch.DestinationPort = wrapperspb.UInt32(t.destinationPort)
		}
		var err error
		switch {
		case v.mtls:
			chain.TransportSocket = tlsctx.Server(trust, r.Mesh().GetMeshMTLS())
		case v.tls != nil:
			if chain.TransportSocket, err = tlsctx.Terminate(v.tls, tlsctx.Terminator{Trust: trust, HTTP: v.http}); err != nil {
				return nil, fmt.Errorf("port %d: %w", t.port, err)
			}
		}
		if v.http {
			policies, e := policy.HTTPFilters(r)
			if e != nil {
				return nil, e
			}
			chain.Filters, err = httpFilters(hcm.Options{
				Role:       hcm.SidecarInbound,
				StatPrefix: t.statPrefix(),
				Routes:     route.Inbound(t.cluster, t.operation, t.declared),
				GRPCWeb:    t.grpcWeb,
				Policies:   policies,
				Logs:       policy.HTTPLogs(r),
				Mesh:       r.Mesh(),
				Headers:    r.ProxyHeaders(),
			})
		} else {
			chain.Filters, err = tcpChain{proxy: &tcpproxyv3.TcpProxy{
				StatPrefix:                      t.cluster,
				ClusterSpecifier:                &tcpproxyv3.TcpProxy_Cluster{Cluster: t.cluster},
				IdleTimeout:                     t.pool.GetTcp().GetIdleTimeout(),
				MaxDownstreamConnectionDuration: t.pool.GetTcp().GetMaxConnectionDuration(),
			}, guarded: true}.filters(r)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, chain)
	}
	return out, nil
}

func inboundDestinationOf(r *input.Reader, port inbound.Port) inboundDestination {
	t := inboundDestination{
		name:      resourcename.Listener(port.Bind, port.Number),
		cluster:   resourcename.InboundCluster(port.Number),
		port:      port.Number,
		declared:  port.Declared,
		grpcWeb:   port.GRPCWeb,
		operation: fmt.Sprintf(":%d/*", port.Number),
		pool:      inbound.Pool(r, port),
	}
	if port.Hostname != "" {
		t.operation = resourcename.HostPort(port.Hostname, port.ServicePort) + "/*"
	}
	return t
}

// virtualInbound accepts all redirected inbound connections. It has filter chains for every declared port, and for all
// other ports as the workload's PeerAuthentication allows.
func virtualInbound(r *input.Reader) (*listenerv3.Listener, error) {
	number := uint32(r.Mesh().GetProxyInboundListenPort())
	out := newListener(r, resourcename.VirtualInbound, wildcard, number, corev3.TrafficDirection_INBOUND)
	out.Transparent = transparent(r)
	hole, err := blackhole(r, "virtualInbound-blackhole", number)
	if err != nil {
		return nil, err
	}
	out.FilterChains = []*listenerv3.FilterChain{hole}

	ports, err := inbound.Ports(r)
	if err != nil {
		return nil, err
	}
	rest, err := undeclared(r, ports)
	if err != nil {
		return nil, err
	}
	out.FilterChains = append(out.FilterChains, rest...)
	var noTLS, noHTTP []uint32
	for _, port := range ports {
		if port.BindToPort {
			continue
		}
		kinds := chainKindsOf(r, port)
		t := inboundDestinationOf(r, port)
		t.destinationPort = port.Number
		more, err := chains(r, t, kinds)
		if err != nil {
			return nil, err
		}
		out.FilterChains = append(out.FilterChains, more...)
		need := needsOf(kinds)
		if !need.tls {
			noTLS = append(noTLS, port.Number)
		}
		if !need.http {
			noHTTP = append(noHTTP, port.Number)
		}
	}
	out.ListenerFilters = append(out.ListenerFilters, originalDestination())
	if r.Class().Interception == class.TProxy {
		out.ListenerFilters = append(out.ListenerFilters, originalSource())
	}
	// The HTTP inspector follows the TLS inspector, so that it skips TLS connections.
	out.ListenerFilters = append(out.ListenerFilters, tlsInspector(onPorts(noTLS)), httpInspector(onPorts(noHTTP)))
	return out, nil
}

// undeclared builds the filter chains of ports that no service declares: of each port that has an mTLS mode of its own,
// and of all others.
func undeclared(r *input.Reader, ports []inbound.Port) ([]*listenerv3.FilterChain, error) {
	var out []*listenerv3.FilterChain
	for _, number := range append([]uint32{0}, r.PortsWithMTLS()...) {
		if slices.ContainsFunc(ports, func(p inbound.Port) bool { return !p.BindToPort && p.Number == number }) {
			continue
		}
		found, err := chains(r, inboundDestination{
			cluster: resourcename.InboundPassthroughCluster, catchAll: true, operation: "/*",
			destinationPort: number,
		}, sniffedChainKinds(r.InboundMTLS(number)))
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// planInbound lists the inbound listeners that bind a port.
func planInbound(r *input.Reader) ([]planned, error) {
	if isRedirected(r) && r.Sidecar() == nil {
		// Only ingress listeners of a Sidecar bind a port despite redirection. Without a Sidecar the ports are not
		// read, so that workloads share their listeners.
		return nil, nil
	}
	ports, err := inbound.Ports(r)
	if err != nil {
		return nil, err
	}
	var out []planned
	for _, port := range ports {
		if port.BindToPort {
			out = append(out, planned{boundName(r, port.Bind, port.Number), func() (*listenerv3.Listener, error) {
				return boundInbound(r, port)
			}})
		}
	}
	return out, nil
}

// boundName names a listener that binds its port.
func boundName(r *input.Reader, address string, port uint32) string {
	if isRedirected(r) {
		return resourcename.BoundListener(address, port)
	}
	return resourcename.Listener(address, port)
}

func boundInbound(r *input.Reader, port inbound.Port) (*listenerv3.Listener, error) {
	out := newListener(r, boundName(r, port.Bind, port.Number), port.Bind, port.Number, corev3.TrafficDirection_INBOUND)
	if port.OnLoopback {
		alsoOnLoopback(r, out, port.Number)
	}
	kinds := chainKindsOf(r, port)
	var err error
	if out.FilterChains, err = chains(r, inboundDestinationOf(r, port), kinds); err != nil {
		return nil, err
	}
	need := needsOf(kinds)
	if need.tls {
		out.ListenerFilters = append(out.ListenerFilters, tlsInspector(nil))
	}
	if need.http {
		out.ListenerFilters = append(out.ListenerFilters, httpInspector(nil))
	}
	return out, nil
}
