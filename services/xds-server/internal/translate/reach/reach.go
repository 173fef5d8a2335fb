// Package reach says where clients connect to services whose connections cannot be told apart by the host of a request. Listeners and the
// clusters that are found per connection are built from the same answer.
package reach

import (
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/translate/protocol"
	"fairlead.dev/services/xds-server/internal/translate/scope"
)

// Anywhere stands for all addresses at which no service is known.
const Anywhere = "0.0.0.0"

// Member is a port of a service.
type Member struct {
	Service *configv1.Service
	Port    *configv1.ServicePort
}

// Place is an address and port that applications connect to, with the ports of services there that are not declared to be HTTP.
type Place struct {
	Address string
	Port    uint32
	// HTTP is true if requests are looked for in the bytes and routed by their host.
	HTTP bool
	// Sniffed is the only service at the place, of undeclared protocol.
	Sniffed *Member
	// TLS are told apart by SNI.
	TLS []Member
	// Ranged take what goes to their networks; only where Address is Anywhere.
	Ranged []Member
	// TCP takes all other bytes; the oldest service wins.
	TCP *Member
}

// Empty tells whether no service is at the place.
func (p *Place) Empty() bool {
	return !p.HTTP && p.Opaque() == nil && len(p.TLS) == 0 && len(p.Ranged) == 0
}

// Opaque returns what takes bytes of which nothing is known; nil if nothing does.
func (p *Place) Opaque() *Member {
	if p.TCP != nil {
		return p.TCP
	}
	return p.Sniffed
}

// Addresses lists where clients connect to: the service's addresses; the Pods' of a headless service; else anywhere, as with networks. Declared
// HTTP shares one place per port number, because the request's host says the rest.
func Addresses(r *input.Reader, m Member) []string {
	if protocol.IsHTTP(m.Port.GetProtocol()) {
		return []string{Anywhere}
	}
	if out := r.VIPs(m.Service); len(out) > 0 {
		if IsRanged(m) {
			out = append(out, Anywhere)
		}
		return out
	}
	if !perPod(m) {
		return []string{Anywhere}
	}
	// A headless service without Pods has nothing to connect to, and must not take connections to anywhere from others.
	var out []string
	for _, shard := range r.Endpoints(m.Service.GetHostname(), m.Port.GetNumber()) {
		for _, e := range shard.GetEndpoints() {
			if ip, err := netip.ParseAddr(e.GetAddress()); err == nil && !ip.IsUnspecified() && !slices.Contains(out, ip.String()) {
				out = append(out, ip.String())
			}
		}
	}
	return out
}

// perPod tells service ports that clients reach by the addresses of their Pods.
func perPod(m Member) bool {
	return m.Service.GetHeadless() && len(mesh.VIPs(m.Service)) == 0 && !protocol.IsTLS(m.Port.GetProtocol())
}

// IsRanged tells service ports that clients reach at all addresses of some networks.
func IsRanged(m Member) bool { return len(mesh.Networks(m.Service)) > 0 }

// Unplaced tells service ports that clients reach at any address.
func Unplaced(r *input.Reader, m Member) bool {
	return len(r.VIPs(m.Service)) == 0 && !IsRanged(m) && !perPod(m)
}

// At returns a place. It depends on no other.
func At(r *input.Reader, address string, port uint32) Place {
	return at(r, address, port, protocol.Opaque...)
}

// TCPAnywhere is At for all addresses, without services that are told by SNI.
func TCPAnywhere(r *input.Reader, port uint32) Place {
	return at(r, Anywhere, port, protocol.Bytes...)
}

func at(r *input.Reader, address string, port uint32, protocols ...configv1.Protocol) Place {
	p := Place{Address: address, Port: port}
	egress, ok := scope.ImplicitEgress(r)
	if !ok {
		return p
	}
	key := address
	if address == Anywhere {
		key = ""
		p.Ranged = membersAt(r, egress, mesh.Within, port, protocols)
		p.HTTP = slices.ContainsFunc(p.Ranged, func(m Member) bool { return protocol.IsSniffed(m.Port.GetProtocol()) })
	}
	for _, m := range membersAt(r, egress, key, port, protocols) {
		if reachedAt(r, m, address) {
			p.join(m)
		}
	}
	return p
}

// membersAt lists the service ports that the index of places has at a key, by hostname.
func membersAt(r *input.Reader, egress *networking.IstioEgressListener, key string, port uint32, protocols []configv1.Protocol) []Member {
	found := slices.Clone(r.ServicesAt(port, key, protocols...))
	slices.SortFunc(found, func(a, b *configv1.Service) int { return strings.Compare(a.GetHostname(), b.GetHostname()) })
	var out []Member
	for _, svc := range found {
		if egress != nil && !r.Admits(egress, svc) {
			continue
		}
		for _, spec := range svc.GetPorts() {
			if spec.GetNumber() == port && slices.Contains(protocols, spec.GetProtocol()) {
				out = append(out, Member{svc, spec})
			}
		}
	}
	return out
}

// Ranged lists the service ports that clients reach at all addresses of some networks.
func Ranged(r *input.Reader, port uint32) []Member {
	egress, ok := scope.ImplicitEgress(r)
	if !ok {
		return nil
	}
	return membersAt(r, egress, mesh.Within, port, protocol.Opaque)
}

// reachedAt tells whether a member of a service that is found at an address is reached there.
func reachedAt(r *input.Reader, m Member, address string) bool {
	if listed := r.VIPs(m.Service); len(listed) > 0 {
		return slices.Contains(listed, address)
	}
	if address == Anywhere {
		return Unplaced(r, m)
	}
	// Or the address was allocated, and the client does not know it.
	return perPod(m) && !slices.Contains(mesh.AutoVIPs(m.Service), address)
}

func (p *Place) join(m Member) {
	spoken := m.Port.GetProtocol()
	switch {
	case protocol.IsSniffed(spoken) && p.Address != Anywhere:
		p.Sniffed = &m
	case protocol.IsSniffed(spoken):
		p.HTTP = true
		p.offerTCP(m)
	case protocol.IsTLS(spoken) && p.Address == Anywhere:
		p.TLS = append(p.TLS, m)
	default:
		p.offerTCP(m)
	}
}

func (p *Place) offerTCP(m Member) {
	if p.TCP == nil || m.Service.GetCreationTime().AsTime().Before(p.TCP.Service.GetCreationTime().AsTime()) {
		p.TCP = &m
	}
}

// ByName returns the service port that a server name of a TLS handshake to any address stands for; the longest name that covers it wins.
func ByName(r *input.Reader, serverName string, port uint32) (Member, bool) {
	egress, ok := scope.ImplicitEgress(r)
	if !ok {
		return Member{}, false
	}
	for host := range mesh.Covering(serverName) {
		svc := r.Service(host)
		if svc == nil || egress != nil && !r.Admits(egress, svc) {
			continue
		}
		for _, spec := range svc.GetPorts() {
			m := Member{svc, spec}
			if spec.GetNumber() == port && protocol.IsTLS(spec.GetProtocol()) && Unplaced(r, m) {
				return m, true
			}
		}
	}
	return Member{}, false
}

// ByNetwork returns the service port whose network a destination is in, the smallest network first; serverName is what a TLS handshake asks
// for, if there is one.
func ByNetwork(r *input.Reader, address string, port uint32, serverName string) (Member, bool) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return Member{}, false
	}
	var best Member
	bits := -1
	for _, m := range Ranged(r, port) {
		if protocol.IsTLS(m.Port.GetProtocol()) && !covers(m.Service.GetHostname(), serverName) {
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
