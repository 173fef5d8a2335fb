// Package origin names where a connection comes from, for limits per client: Of returns one name for all addresses that
// one client can use. The name proves nothing about the client's identity.
package origin

import (
	"net"
	"net/netip"
)

// Of returns the origin of a remote address: an IPv4 address itself; the /64 of an IPv6 address, which is the smallest
// range that a client is assigned; the network's name, such as "unix", for other sockets.
func Of(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return a.Network()
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked().String()
	}
	return ip.String()
}
