// Package serviceaddress finds the addresses at which clients connect to the ports of services (Addresses), and the
// service ports behind an address (At, BySNI, ByCIDR). It is about connections whose service cannot be told from the
// host of a request: TCP, TLS and ports of undeclared protocol.
//
// Package listener builds listeners from these answers, and package cluster the clusters that on-demand sidecars
// request for each connection. Both therefore agree on the service of a connection.
package serviceaddress

import (
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/sidecarscope"
)

// Wildcard is the address of a listener for all addresses that have no listener of their own.
const Wildcard = "0.0.0.0"

// ServicePort is a port of a service.
type ServicePort struct {
	Service *configv1.Service
	Port    *configv1.ServicePort
}

// EndpointAddress is an IP address and port that applications connect to, with the service ports there whose protocol
// is not declared to be HTTP.
type EndpointAddress struct {
	Address string
	Port    uint32
	// HTTP is true if some connections may carry HTTP, which is detected and routed by the host of the request.
	HTTP bool
	// Sniffed is the service port of undeclared protocol, or of HTTP if IsChosenByAddress, that has this address for
	// itself; nil at Wildcard.
	Sniffed *ServicePort
	// TLS are the service ports that share the address and are chosen by SNI.
	TLS []ServicePort
	// CIDRs are the service ports whose addresses are CIDR ranges; set at Wildcard only.
	CIDRs []ServicePort
	// TCP receives all other connections. If several services want them, the oldest service wins.
	TCP *ServicePort
}

// Empty reports whether there is no service port at the address.
func (a *EndpointAddress) Empty() bool {
	return !a.HTTP && a.Opaque() == nil && len(a.TLS) == 0 && len(a.CIDRs) == 0
}

// Opaque returns the service port that receives connections of unknown content, or nil.
func (a *EndpointAddress) Opaque() *ServicePort {
	if a.TCP != nil {
		return a.TCP
	}
	return a.Sniffed
}

// Addresses lists the addresses that need a listener for a service port:
//
//   - Wildcard for declared HTTP: one listener for each port number is enough, because requests are routed by host; and
//     the VIPs too if IsChosenByAddress;
//   - the VIPs of the service, and Wildcard as well if some of its addresses are CIDR ranges;
//   - the addresses of the Pods for a headless service;
//   - Wildcard for a service without an address.
func Addresses(r *input.Reader, m ServicePort) []string {
	if contract.IsHTTP(m.Port.GetProtocol()) {
		if IsChosenByAddress(r, m) {
			return append([]string{Wildcard}, r.VIPs(m.Service)...)
		}
		return []string{Wildcard}
	}
	if out := r.VIPs(m.Service); len(out) > 0 {
		if HasCIDR(m) {
			out = append(out, Wildcard)
		}
		return out
	}
	if !isReachedByPodIP(m) {
		return []string{Wildcard}
	}
	// A headless service without Pods gets no address: at Wildcard it would take the connections of other services.
	var out []string
	for _, shard := range r.Endpoints(m.Service, m.Port.GetNumber()) {
		for _, e := range shard.GetEndpoints() {
			if ip, err := netip.ParseAddr(e.GetAddress()); err == nil && !ip.IsUnspecified() && !slices.Contains(out, ip.String()) {
				out = append(out, ip.String())
			}
		}
	}
	return out
}

// IsChosenByAddress reports whether all requests to the VIPs of a service port of HTTP are for it, whatever their host.
// It is so where routes of the Gateway API are attached to services, on all services of the port's number: a route
// holds for who connects to the address of its service, and not for who names it while connected to another. On-demand
// sidecars know of no address, and route by the host.
func IsChosenByAddress(r *input.Reader, m ServicePort) bool {
	return !r.Class().OnDemand && contract.IsHTTP(m.Port.GetProtocol()) && r.RoutesPort(m.Port.GetNumber())
}

// isReachedByPodIP reports whether clients connect to the addresses of the service's Pods.
func isReachedByPodIP(m ServicePort) bool {
	return m.Service.GetHeadless() && len(mesh.VIPs(m.Service)) == 0 && !contract.IsTLS(m.Port.GetProtocol())
}

// HasCIDR reports whether some addresses of the service are CIDR ranges.
func HasCIDR(m ServicePort) bool { return len(mesh.Networks(m.Service)) > 0 }

// IsWithoutAddress reports whether clients may connect to the service at any address.
func IsWithoutAddress(r *input.Reader, m ServicePort) bool {
	return len(r.VIPs(m.Service)) == 0 && !HasCIDR(m) && !isReachedByPodIP(m)
}

// At returns the service ports at one address. It reads nothing about other addresses, so changes there do not rebuild
// the caller's resource.
func At(r *input.Reader, address string, port uint32) EndpointAddress {
	if address == Wildcard {
		return at(r, address, port, protocol.Opaque...)
	}
	return at(r, address, port, slices.Concat(protocol.Opaque, protocol.HTTP)...)
}

// TCPAtWildcard returns the service ports at Wildcard, without those that are chosen by SNI.
func TCPAtWildcard(r *input.Reader, port uint32) EndpointAddress {
	return at(r, Wildcard, port, protocol.Bytes...)
}

func at(r *input.Reader, address string, port uint32, protocols ...configv1.Protocol) EndpointAddress {
	a := EndpointAddress{Address: address, Port: port}
	egress, ok := sidecarscope.ImplicitEgress(r)
	if !ok {
		return a
	}
	key := address
	if address == Wildcard {
		key = ""
		a.CIDRs = servicePortsAt(r, egress, mesh.Within, port, protocols)
		a.HTTP = slices.ContainsFunc(a.CIDRs, func(m ServicePort) bool { return protocol.IsSniffed(m.Port.GetProtocol()) })
	}
	for _, m := range servicePortsAt(r, egress, key, port, protocols) {
		if reachedAt(r, m, address) && (!contract.IsHTTP(m.Port.GetProtocol()) || IsChosenByAddress(r, m)) {
			a.add(m)
		}
	}
	return a
}

// servicePortsAt lists the service ports that the mesh's index has under key (an address, "" or mesh.Within), by
// hostname, as far as the Sidecar imports them.
func servicePortsAt(r *input.Reader, egress *networking.IstioEgressListener, key string, port uint32,
	protocols []configv1.Protocol) []ServicePort {
	found := slices.Clone(r.ServicesAt(port, key, protocols...))
	slices.SortFunc(found, func(a, b *configv1.Service) int { return strings.Compare(a.GetHostname(), b.GetHostname()) })
	var out []ServicePort
	for _, svc := range found {
		if egress != nil && !r.Admits(egress, svc) {
			continue
		}
		for _, spec := range svc.GetPorts() {
			if spec.GetNumber() == port && slices.Contains(protocols, spec.GetProtocol()) {
				out = append(out, ServicePort{svc, spec})
			}
		}
	}
	return out
}

// WithCIDR lists the service ports of a number whose addresses are CIDR ranges.
func WithCIDR(r *input.Reader, port uint32) []ServicePort {
	egress, ok := sidecarscope.ImplicitEgress(r)
	if !ok {
		return nil
	}
	return servicePortsAt(r, egress, mesh.Within, port, protocol.Opaque)
}

// reachedAt reports whether clients of the class connect to the service port at the address.
func reachedAt(r *input.Reader, m ServicePort, address string) bool {
	if listed := r.VIPs(m.Service); len(listed) > 0 {
		return slices.Contains(listed, address)
	}
	if address == Wildcard {
		return IsWithoutAddress(r, m)
	}
	// An address that was allocated for the service leads nowhere if the client does not know it.
	return isReachedByPodIP(m) && !slices.Contains(mesh.AutoVIPs(m.Service), address)
}

func (a *EndpointAddress) add(m ServicePort) {
	spoken := m.Port.GetProtocol()
	switch {
	case protocol.MayBeHTTP(spoken) && a.Address != Wildcard:
		a.Sniffed = &m
	case protocol.IsSniffed(spoken):
		a.HTTP = true
		a.offerTCP(m)
	case contract.IsTLS(spoken) && a.Address == Wildcard:
		a.TLS = append(a.TLS, m)
	default:
		a.offerTCP(m)
	}
}

func (a *EndpointAddress) offerTCP(m ServicePort) {
	if a.TCP == nil || m.Service.GetCreationTime().AsTime().Before(a.TCP.Service.GetCreationTime().AsTime()) {
		a.TCP = &m
	}
}

// BySNI returns the service port without an address that a TLS handshake with this server name is for. The longest
// matching host of a service wins.
func BySNI(r *input.Reader, serverName string, port uint32) (ServicePort, bool) {
	egress, ok := sidecarscope.ImplicitEgress(r)
	if !ok {
		return ServicePort{}, false
	}
	for host := range mesh.Covering(serverName) {
		svc := r.Service(host)
		if svc == nil || egress != nil && !r.Admits(egress, svc) {
			continue
		}
		for _, spec := range svc.GetPorts() {
			m := ServicePort{svc, spec}
			if spec.GetNumber() == port && contract.IsTLS(spec.GetProtocol()) && IsWithoutAddress(r, m) {
				return m, true
			}
		}
	}
	return ServicePort{}, false
}

// ByCIDR returns the service port whose CIDR range contains the address; the smallest range wins. serverName is the SNI
// of the connection's TLS handshake, "" if there is none.
func ByCIDR(r *input.Reader, address string, port uint32, serverName string) (ServicePort, bool) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return ServicePort{}, false
	}
	var best ServicePort
	bits := -1
	for _, m := range WithCIDR(r, port) {
		if contract.IsTLS(m.Port.GetProtocol()) && !covers(m.Service.GetHostname(), serverName) {
			continue
		}
		for _, network := range mesh.Networks(m.Service) {
			if network.Contains(ip) && network.Bits() > bits {
				best, bits = m, network.Bits()
			}
		}
	}
	return best, bits >= 0
}

func covers(hostname, serverName string) bool {
	for host := range mesh.Covering(serverName) {
		if host == hostname {
			return true
		}
	}
	return false
}
