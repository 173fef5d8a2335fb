package listener

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/policy"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/tlsctx"
)

// planGateway lists a gateway's listeners, one per port. A port without any filter chain has no listener, nor has one
// of UDP without a route.
func planGateway(r *input.Reader) ([]planned, error) {
	var out []planned
	for _, port := range gateway.Ports(r) {
		name := port.Name()
		if port.Kind == gateway.HTTP {
			out = append(out, planned{name, func() (*listenerv3.Listener, error) { return gatewayHTTP(r, port, name) }})
			continue
		}
		// Whether there is any filter chain is known only after building.
		build := gatewayChains
		if port.Kind == gateway.UDP {
			build = gatewayUDP
		}
		built, err := build(r, port, name)
		if _, incomplete := errors.AsType[*plan.Incomplete](err); err != nil && !incomplete {
			return nil, err
		}
		if built.GetUdpListenerConfig() != nil || len(built.GetFilterChains()) > 0 || built.GetDefaultFilterChain() != nil {
			out = append(out, planned{name, func() (*listenerv3.Listener, error) { return built, err }})
		}
	}
	return out, nil
}

func gatewayHTTP(r *input.Reader, port gateway.Port, name string) (*listenerv3.Listener, error) {
	filters, err := gatewayManager(r, name, port.HTTPRoute(), port.Servers...)
	if err != nil {
		return nil, err
	}
	out := gatewayBase(r, port, name)
	out.FilterChains = []*listenerv3.FilterChain{{Filters: filters}}
	return out, nil
}

// gatewayBase returns a listener with the settings that all listeners of a gateway have. Load balancers in front of it
// may send the PROXY protocol.
func gatewayBase(r *input.Reader, port gateway.Port, name string) *listenerv3.Listener {
	out := newListener(r, name, port.Bind, port.Number, corev3.TrafficDirection_OUTBOUND)
	if r.GatewayTopology().GetProxyProtocol() != nil {
		out.ListenerFilters = []*listenerv3.ListenerFilter{
			listenerFilter("envoy.filters.listener.proxy_protocol", &proxyprotocolv3.ProxyProtocol{}, nil),
		}
	}
	return out
}

func gatewayManager(r *input.Reader, name, routeName string, servers ...gateway.Server) ([]*listenerv3.Filter, error) {
	prefix := "outbound_" + name
	if len(servers) > 0 {
		prefix = cmp.Or(servers[0].Spec.GetName(), prefix)
	}
	policies, err := policy.HTTPFilters(r)
	if err != nil {
		return nil, err
	}
	return httpFilters(hcm.Options{
		Role:       hcm.Gateway,
		Policies:   policies,
		Logs:       policy.HTTPLogs(r),
		StatPrefix: prefix,
		RouteName:  routeName,
		GRPCWeb:    slices.ContainsFunc(servers, isGRPCWeb),
		Mesh:       r.Mesh(),
		Topology:   r.GatewayTopology(),
		Headers:    r.ProxyHeaders(),
	})
}

func isGRPCWeb(s gateway.Server) bool {
	return contract.ParseProtocol(s.Spec.GetPort().GetProtocol()) == configv1.Protocol_PROTOCOL_GRPC_WEB
}

// gatewayChains builds a listener for TLS, with the filter chains of its servers chosen by SNI, or for TCP. Listeners
// of the Gateway API that cannot be built are left out; the error, a *plan.Incomplete, names them.
func gatewayChains(r *input.Reader, port gateway.Port, name string) (*listenerv3.Listener, error) {
	out := gatewayBase(r, port, name)
	taken := usedMatches{}
	for _, server := range port.Servers {
		var found []filterChain
		var err error
		switch {
		case port.Kind == gateway.TCP:
			found, err = gatewayTCP(r, server)
		case server.IsAutoPassthrough():
			found, err = autoPassthroughChains(r, server)
		case server.Terminates():
			found, err = terminatingChains(r, port, server, name)
		default:
			found, err = passthroughChains(r, server)
		}
		if err != nil {
			return nil, fmt.Errorf("Gateway %s: server %q: %w", server.Name(), server.Spec.GetPort().GetName(), err)
		}
		taken.addChains(out, found)
	}
	var failures []error
	for _, l := range port.Listeners {
		found, err := listenerChains(r, port, l, name)
		if err != nil {
			failures = append(failures,
				fmt.Errorf("%s %s/%s: listener %q: %w", l.Kind(), l.Owner.Key.Namespace, l.Owner.Key.Name, l.Spec.GetName(), err))
		}
		taken.addChains(out, found)
	}
	taken.repeatInNarrowNetworks(out)
	if port.Kind == gateway.TLS {
		out.ListenerFilters = append(out.ListenerFilters, tlsInspector(nil))
	}
	if len(failures) > 0 {
		return out, &plan.Incomplete{Err: errors.Join(failures...)}
	}
	return out, nil
}

// terminatingChains builds the filter chains of a server that terminates TLS: one for HTTP, or those of its TCP routes.
func terminatingChains(r *input.Reader, port gateway.Port, server gateway.Server, name string) ([]filterChain, error) {
	trust := tlsctx.NewTrust(r.Class().TrustDomain, r.Mesh().GetTrustDomainAliases())
	socket, err := tlsctx.Terminate(server.Spec.GetTls(), tlsctx.Terminator{
		Trust: trust, HTTP: server.TerminatesHTTP(), Credentials: true, Mesh: r.Mesh(),
	})
	if err != nil {
		return nil, err
	}
	served := []filterChain{{}}
	if server.TerminatesHTTP() {
		served[0].filters, err = gatewayManager(r, name, port.Route(server), server)
	} else {
		served, err = gatewayTCP(r, server)
	}
	for i := range served {
		if served[i].match == nil {
			served[i].match = &listenerv3.FilterChainMatch{}
		}
		served[i].match.TransportProtocol, served[i].match.ServerNames = tlsTransport, serverNames(server)
		served[i].socket = socket
	}
	return served, err
}

// serverNames lists the hosts of a server as SNI values; nil if the server accepts any.
func serverNames(server gateway.Server) []string {
	var out []string
	for _, host := range server.Hosts() {
		if host == "*" {
			return nil
		}
		out = append(out, strings.ToLower(host))
	}
	return out
}

// gatewayTCP builds the filter chains of the TCP routes bound to a server, up to the first without a match.
func gatewayTCP(r *input.Reader, server gateway.Server) ([]filterChain, error) {
	c := matchContext{port: server.Number(), gateway: server.Name(), statPrefix: server.Spec.GetName()}
	var out []filterChain
	for _, vs := range r.VirtualServices(server.Name()) {
		if !slices.ContainsFunc(vs.Spec.GetHosts(), func(host string) bool {
			return len(server.ServedHosts(vs.Key.Namespace, host)) > 0
		}) {
			continue
		}
		found, err := tcpRoutes(r, vs, c)
		if err != nil {
			return nil, err
		}
		if out = append(out, found...); takesAll(out) {
			break
		}
	}
	return out, nil
}

// passthroughChains builds the filter chains of the TLS routes bound to a PASSTHROUGH server, limited to its hosts.
func passthroughChains(r *input.Reader, server gateway.Server) ([]filterChain, error) {
	c := matchContext{port: server.Number(), gateway: server.Name(), statPrefix: server.Spec.GetName()}
	var out []filterChain
	for _, vs := range r.VirtualServices(server.Name()) {
		found, err := tlsRoutes(r, vs, c, func(host string) []string { return server.ServedHosts(vs.Key.Namespace, host) })
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// autoPassthroughChains builds the filter chain of an AUTO_PASSTHROUGH server: mesh TLS is forwarded to the cluster
// whose name is the SNI. Only clusters for this purpose have such names; allowMeshSNI denies other names.
func autoPassthroughChains(r *input.Reader, server gateway.Server) ([]filterChain, error) {
	proxy := &tcpproxyv3.TcpProxy{
		StatPrefix: server.Spec.GetName(), ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: resourcename.BlackHoleCluster},
	}
	proxy.StatPrefix = cmp.Or(proxy.StatPrefix, resourcename.BlackHoleCluster)
	filters, err := tcpChain{proxy: proxy, clusterBySNI: true, guarded: true}.filters(r)
	if err != nil {
		return nil, err
	}
	chosen := &listenerv3.FilterChainMatch{TransportProtocol: tlsTransport, ApplicationProtocols: tlsctx.MeshAny}
	for _, host := range serverNames(server) {
		// The part before the host in such an SNI looks like labels of the host.
		chosen.ServerNames = append(chosen.ServerNames, "*."+strings.TrimPrefix(host, "*."))
	}
	return []filterChain{{match: chosen, filters: filters}}, nil
}
