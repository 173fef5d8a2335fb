package plan

import (
	"fmt"
	"net/netip"
)

// Offsets of addresses within the range.
const (
	watcherOffset = 10
	caOffset      = 11
	xdsOffset     = 12
	podOffset     = 256 + 1
)

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// addresses allots the addresses of one loopback range.
type addresses struct {
	prefix netip.Prefix
	pods   uint32
}

func newAddresses(prefix netip.Prefix, xdsServers int) (*addresses, error) {
	switch {
	case !prefix.IsValid() || !prefix.Addr().Is4() || prefix.Bits() < 8 || !loopback.Contains(prefix.Addr()):
		return nil, fmt.Errorf("loopback range %s is not within 127.0.0.0/8; choose one like 127.66.0.0/16", prefix)
	case prefix.Bits() > 22:
		return nil, fmt.Errorf("loopback range %s is too small; choose a prefix length of 22 or less, like 127.66.0.0/16", prefix)
	case xdsServers < 1 || xdsServers > 200:
		return nil, fmt.Errorf("%d xds-servers are not possible; choose 1 to 200", xdsServers)
	}
	return &addresses{prefix: prefix.Masked()}, nil
}

// at returns the address at an offset in the range.
func (a *addresses) at(offset uint32) netip.Addr {
	b := a.prefix.Addr().As4()
	n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	n += offset
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// pod returns an address for the next Pod.
func (a *addresses) pod() (netip.Addr, error) {
	addr := a.at(podOffset + a.pods)
	if a.pods+podOffset >= 1<<(32-a.prefix.Bits())-1 {
		return netip.Addr{}, fmt.Errorf("loopback range %s has no address left after %d Pods; choose a larger one", a.prefix, a.pods)
	}
	a.pods++
	return addr, nil
}
