package listener

import (
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/gateway"
	"fairlead.dev/services/xds-server/internal/translate/hcm"
	"fairlead.dev/services/xds-server/internal/translate/names"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/tlsctx"
)

// planGateway lists a router's listeners, one per port. A port none of whose servers leads anywhere yet has none.
func planGateway(r *input.Reader) ([]planned, error) {
	var out []planned
	for _, port := range gateway.Ports(r) {
		name := names.Listener(port.Bind, port.Number)
		if port.Kind == gateway.HTTP {
			out = append(out, planned{name, func() (*listenerv3.Listener, error) { return gatewayHTTP(r, port, name) }})
			continue
		}
		// Whether there is anything to serve is only known after building.
		built, err := gatewayChains(r, port, name)
		if err != nil {
			return nil, err
		}
		if len(built.GetFilterChains()) > 0 || built.GetDefaultFilterChain() != nil {
			out = append(out, planned{name, func() (*listenerv3.Listener, error) { return built, nil }})
		}
	}
	return out, nil
}

func gatewayHTTP(r *input.Reader, port gateway.Port, name string) (*listenerv3.Listener, error) {
	filters, err := gatewayManager(r, name, port.Route(port.Servers[0]), port.Servers...)
	if err != nil {
		return nil, err
	}
	out := base(r, name, port.Bind, port.Number, corev3.TrafficDirection_OUTBOUND)
	out.FilterChains = []*listenerv3.FilterChain{{Filters: filters}}
	return out, nil
}

func gatewayManager(r *input.Reader, name, routeName string, servers ...gateway.Server) ([]*listenerv3.Filter, error) {
	return httpFilters(hcm.Options{
		Role:       hcm.Gateway,
		StatPrefix: "outbound_" + name,
		RouteName:  routeName,
		GRPCWeb:    slices.ContainsFunc(servers, isGRPCWeb),
		Mesh:       r.Mesh(),
	})
}

func isGRPCWeb(s gateway.Server) bool {
	return protocol.Parse(s.Spec.GetPort().GetProtocol()) == configv1.Protocol_PROTOCOL_GRPC_WEB
}

// gatewayChains builds a listener whose servers are told apart by SNI, or which takes opaque bytes.
func gatewayChains(r *input.Reader, port gateway.Port, name string) (*listenerv3.Listener, error) {
	out := base(r, name, port.Bind, port.Number, corev3.TrafficDirection_OUTBOUND)
	taken := claims{}
	for _, server := range port.Servers {
		var found []l4chain
		var err error
		switch {
		case port.Kind == gateway.TCP:
			found, err = gatewayTCP(r, server)
		case server.TerminatesHTTP(), terminates(server):
			found, err = terminated(r, port, server, name)
		default:
			found, err = passedThrough(r, server)
		}
		if err != nil {
			return nil, fmt.Errorf("Gateway %s: server %q: %w", server.Name(), server.Spec.GetPort().GetName(), err)
		}
		taken.append(out, found)
	}
	if port.Kind == gateway.TLS {
		out.ListenerFilters = []*listenerv3.ListenerFilter{tlsInspector(nil)}
	}
	return out, nil
}

// terminates tells servers that decrypt and serve opaque bytes.
func terminates(s gateway.Server) bool {
	switch s.Spec.GetTls().GetMode() {
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		return false
	default:
		return true
	}
}

// terminated is the chain of a server with a certificate.
func terminated(r *input.Reader, port gateway.Port, server gateway.Server, name string) ([]l4chain, error) {
	trust := tlsctx.NewTrust(r.Class().TrustDomain, r.Mesh().GetTrustDomainAliases())
	socket, err := tlsctx.Terminate(server.Spec.GetTls(), tlsctx.Terminator{Trust: trust, HTTP: server.TerminatesHTTP(), Credentials: true})
	if err != nil {
		return nil, err
	}
	match := &listenerv3.FilterChainMatch{TransportProtocol: tlsTransport, ServerNames: serverNames(server)}
	if server.TerminatesHTTP() {
		filters, err := gatewayManager(r, name, port.Route(server), server)
		return []l4chain{{match: match, filters: filters, socket: socket}}, err
	}
	routes, err := gatewayTCP(r, server)
	if err != nil || len(routes) == 0 {
		return nil, err
	}
	return []l4chain{{match: match, filters: routes[len(routes)-1].filters, socket: socket}}, nil
}

// serverNames lists the hosts as SNI; nil if the server takes any.
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

// gatewayTCP builds the chains of the TCP routes bound to a server.
func gatewayTCP(r *input.Reader, server gateway.Server) ([]l4chain, error) {
	c := caller{port: server.Number(), gateway: server.Name()}
	for _, vs := range r.VirtualServices(server.Name()) {
		if !slices.ContainsFunc(vs.Spec.GetHosts(), func(host string) bool {
			return len(server.Admits(vs.Key.Namespace, host)) > 0
		}) {
			continue
		}
		if found, err := tcpRoutes(r, vs, c); err != nil || len(found) > 0 {
			return found, err
		}
	}
	return nil, nil
}

// passedThrough builds the chains of the TLS routes bound to a server, limited to its hosts.
func passedThrough(r *input.Reader, server gateway.Server) ([]l4chain, error) {
	c := caller{port: server.Number(), gateway: server.Name()}
	var out []l4chain
	for _, vs := range r.VirtualServices(server.Name()) {
		found, err := tlsRoutes(r, vs, c, func(host string) []string { return server.Admits(vs.Key.Namespace, host) })
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}
