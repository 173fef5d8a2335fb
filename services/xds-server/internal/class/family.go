package class

import "net/netip"

// Families says which IP versions a proxy has addresses of.
type Families uint8

// Families of a proxy. A proxy without known addresses has IPv4.
const (
	IPv4 Families = iota
	IPv6
	DualStack
)

// String names the families.
func (f Families) String() string {
	switch f {
	case IPv6:
		return "IPv6"
	case DualStack:
		return "IPv4 and IPv6"
	default:
		return "IPv4"
	}
}

// familiesOf returns the families of addresses.
func familiesOf(addresses []string) Families {
	var four, six bool
	for _, a := range addresses {
		if ip, err := netip.ParseAddr(a); err == nil {
			four, six = four || ip.Is4(), six || !ip.Is4()
		}
	}
	switch {
	case four && six:
		return DualStack
	case six:
		return IPv6
	default:
		return IPv4
	}
}

// Has reports whether a proxy of these families can reach an address.
func (f Families) Has(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && (f == DualStack || ip.Is4() == (f == IPv4))
}

// Of chooses from the IPv4 and the IPv6 form of an address: the first that a proxy of these families uses, and the
// other one for a dual-stack proxy.
func (f Families) Of(four, six string) (first string, more []string) {
	switch f {
	case IPv6:
		return six, nil
	case DualStack:
		return four, []string{six}
	default:
		return four, nil
	}
}

// Loopback is the address at which the proxy's own host is reached.
func (f Families) Loopback() string {
	first, _ := f.Of("127.0.0.1", "::1")
	return first
}
