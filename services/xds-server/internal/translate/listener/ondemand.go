package listener

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/resourcename"
	"fairlead.dev/services/xds-server/internal/translate/serviceaddress"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

// onDemandAddresses lists the addresses of an on-demand sidecar's listeners for a service port.
//
// An on-demand sidecar has a listener at the wildcard address for each port number that needs protocol detection: for
// HTTP, which is routed by host, and for TLS to services without an address, which is routed by SNI. Every other
// connection requests a cluster that is named after its destination (resourcename.OnDemandCluster). A service port has
// a listener at its own addresses only if such a cluster would not be enough:
//
//   - a VirtualService, a TCPRoute or a TLSRoute routes its connections, or its DestinationRule has a policy that Envoy
//     configures in the listener;
//   - its server may send the first bytes, on a port whose wildcard listener waits for the client's.
func onDemandAddresses(r *input.Reader, m servicePort) []string {
	var out []string
	port := m.Port.GetNumber()
	if protocol.MayBeHTTP(m.Port.GetProtocol()) || (serviceaddress.IsWithoutAddress(r, m) || serviceaddress.HasCIDR(m)) &&
		sharesPort(r, port) {
		out = append(out, wildcard)
	}
	if contract.IsHTTP(m.Port.GetProtocol()) || serviceaddress.IsWithoutAddress(r, m) || !needsOwnListener(r, m) {
		return out
	}
	for _, address := range serviceaddress.Addresses(r, m) {
		if address == wildcard {
			continue
		}
		found := serviceaddress.At(r, address, port)
		// The service port that receives the connections lists the listener.
		if found.TCP != nil && *found.TCP == m || found.Sniffed != nil && *found.Sniffed == m {
			out = append(out, address)
		}
	}
	return out
}

// needsOwnListener reports whether a service port with addresses has listeners there.
func needsOwnListener(r *input.Reader, m servicePort) bool {
	p := m.Port.GetProtocol()
	return hasListenerPolicy(r, m) || !contract.IsTLS(p) && !protocol.IsSniffed(p) && sharesPort(r, m.Port.GetNumber())
}

// hasListenerPolicy reports whether a listener for the service port does more than forward to its cluster: TCP or TLS
// routes of VirtualServices, TCPRoutes, TLSRoutes, or traffic policies that Envoy configures in the TCP proxy.
func hasListenerPolicy(r *input.Reader, m servicePort) bool {
	for _, vs := range r.VirtualServicesOf(contract.MeshGateway, m.Service.GetHostname()) {
		if contract.IsTLS(m.Port.GetProtocol()) && len(vs.Spec.GetTls()) > 0 || !contract.IsTLS(m.Port.GetProtocol()) &&
			len(vs.Spec.GetTcp()) > 0 {
			return true
		}
	}
	if len(serviceTCPRoutes(r, m))+len(serviceTLSRoutes(r, m)) > 0 {
		return true
	}
	with := &tcpproxyv3.TcpProxy{}
	applyTrafficPolicy(with, trafficPolicyOf(r, resourcename.Cluster{Port: m.Port.GetNumber(), Hostname: m.Service.GetHostname()}))
	return proto.Size(with) > 0
}

// sharesPort reports whether there is a listener at the wildcard address of a port.
func sharesPort(r *input.Reader, port uint32) bool {
	egress, ok := sidecarscope.ImplicitEgress(r)
	if !ok {
		return false
	}
	if r.Speaks(egress, port, protocol.WithRoutes...) || r.SpeaksUnplaced(egress, port, protocol.TLS...) {
		return true
	}
	rest := serviceaddress.TCPAtWildcard(r, port).TCP
	return rest != nil && hasListenerPolicy(r, *rest) || len(specialCIDRs(r, port)) > 0
}

// specialCIDRs lists the service ports with CIDR ranges that need filter chains in onDemandPort.
func specialCIDRs(r *input.Reader, port uint32) []servicePort {
	return slices.DeleteFunc(serviceaddress.WithCIDR(r, port), func(m servicePort) bool { return !hasListenerPolicy(r, m) })
}

// onDemand builds the listener of an address and port; nil if the connections there request their clusters one by one.
func onDemand(r *input.Reader, address string, port uint32) (*listenerv3.Listener, error) {
	if address == wildcard {
		return onDemandPort(r, port)
	}
	s := &addressChains{EndpointAddress: serviceaddress.At(r, address, port)}
	for _, m := range []*servicePort{s.Sniffed, s.TCP} {
		if m != nil && needsOwnListener(r, *m) {
			return outbound(r, s)
		}
	}
	return nil, nil
}

// onDemandPort builds the listener at the wildcard address of a port.
func onDemandPort(r *input.Reader, port uint32) (*listenerv3.Listener, error) {
	egress, ok := sidecarscope.ImplicitEgress(r)
	if !ok {
		return nil, nil
	}
	http := r.Speaks(egress, port, protocol.WithRoutes...)
	tls := r.SpeaksUnplaced(egress, port, protocol.TLS...)
	rest := serviceaddress.TCPAtWildcard(r, port).TCP
	if rest != nil && !hasListenerPolicy(r, *rest) {
		rest = nil
	}
	ranged := specialCIDRs(r, port)
	if !http && !tls && rest == nil && len(ranged) == 0 {
		return nil, nil
	}
	out := newListener(r, resourcename.Listener(wildcard, port), wildcard, port, corev3.TrafficDirection_OUTBOUND)
	out.BindToPort = wrapperspb.Bool(false)
	if http {
		if err := plainHTTPChain(r, out, resourcename.OutboundRouteConfig(port), port); err != nil {
			return nil, err
		}
	}
	taken := usedMatches{}
	if tls {
		found, err := onDemandTLS(r, port)
		if err != nil {
			return nil, err
		}
		taken.addChains(out, found)
	}
	if rest != nil {
		found, err := servicePortChains(r, *rest, false)
		if err != nil {
			return nil, err
		}
		taken.addChains(out, found)
	}
	if err := taken.addCIDRChains(r, out, ranged, http); err != nil {
		return nil, err
	}
	if out.GetDefaultFilterChain() == nil {
		filters, err := onDemandTCP(r, resourcename.OnDemandTCPFormat)
		if err != nil {
			return nil, err
		}
		out.DefaultFilterChain = &listenerv3.FilterChain{Name: "PassthroughFilterChain", Filters: filters}
	}
	inspectTLS(out)
	return out, nil
}

// onDemandTLS builds the filter chains for TLS to services without an address: those of TLS routes, and one for all
// other connections.
func onDemandTLS(r *input.Reader, port uint32) ([]filterChain, error) {
	var out []filterChain
	for _, vs := range r.OpaqueRoutes() {
		if len(vs.Spec.GetTls()) == 0 ||
			!slices.ContainsFunc(vs.Spec.GetHosts(), func(host string) bool { return mayRouteBySNI(r, host, port) }) {
			continue
		}
		found, err := tlsRoutes(r, vs, matchContext{port: port, gateway: contract.MeshGateway},
			func(host string) []string { return []string{host} })
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	filters, err := onDemandTCP(r, resourcename.OnDemandTLSFormat)
	if err != nil {
		return nil, err
	}
	return append(out, filterChain{match: &listenerv3.FilterChainMatch{TransportProtocol: tlsTransport}, filters: filters}), nil
}

// mayRouteBySNI reports whether a VirtualService's host may cover a service of onDemandTLS.
func mayRouteBySNI(r *input.Reader, host string, port uint32) bool {
	if strings.HasPrefix(host, "*") && r.AnyUnder(host) {
		return true
	}
	_, ok := serviceaddress.BySNI(r, host, port)
	return ok
}

// onDemandTCP forwards connections to clusters whose names are made from the connections.
func onDemandTCP(r *input.Reader, format string) ([]*listenerv3.Filter, error) {
	return tcpChain{outbound: true, clusterFormat: format, proxy: &tcpproxyv3.TcpProxy{
		StatPrefix: "ondemand",
		// Envoy requires a cluster, although setCluster sets one for every connection.
		ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: resourcename.BlackHoleCluster},
	}}.filters(r)
}
