// Package origin names where a connection comes from, for limits per client that a client must not evade by using many
// addresses. The name proves nothing about who the client is.
package origin

import (
	"net"
	"net/netip"
)

// Of returns the origin of a remote address: an IPv4 address; the /64 of an IPv6 address, which is the smallest range
// that a client is assigned; for other sockets the network's name, such as "unix".
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
