package fetch

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// metadataAddresses are those at which clouds tell secrets to whoever asks from inside, besides link-local ones.
var metadataAddresses = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),      // AWS
	netip.MustParseAddr("fd20:ce::254"),       // Google Cloud
	netip.MustParseAddr("100.100.100.200"),    // Alibaba Cloud
	netip.MustParseAddr("168.63.129.16"),      // Azure
	netip.MustParseAddr("192.0.0.192"),        // Oracle Cloud
	netip.MustParseAddr("fd00:c1::a9fe:a9fe"), // Oracle Cloud
}

// nat64 is the prefix of addresses that have an IPv4 address in their last four bytes (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// ErrForbidden is wrapped by the error of a connection or URL that is not allowed, in contrast to one that fails.
var ErrForbidden = errors.New("not allowed")

// DialTimeout bounds the opening of a connection.
const DialTimeout = 10 * time.Second

// Addresses says which addresses a connection may be made to. The zero value admits all but those of this machine, of
// link-local and metadata services, and of groups.
type Addresses struct {
	// Allow are ranges that may be used whatever is in them.
	Allow []netip.Prefix
	// Only admits nothing but Allow.
	Only bool
}

// Check returns why no connection may be made to an address; nil if it may be.
func (a Addresses) Check(ip netip.Addr) error {
	ip = ip.WithZone("").Unmap()
	if nat64.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	if slices.ContainsFunc(a.Allow, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return nil
	}
	what := ""
	switch {
	case a.Only:
		what = fmt.Sprintf("none of %v", a.Allow)
	case ip.IsLoopback():
		what = "of the own machine (loopback)"
	case ip.IsUnspecified():
		what = "unspecified"
	case ip.IsLinkLocalUnicast(), slices.Contains(metadataAddresses, ip):
		what = "link-local or of a cloud's metadata service"
	case ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		what = "of a group"
	default:
		return nil
	}
	return fmt.Errorf("address %s is %s: %w", ip, what, ErrForbidden)
}

// Dialer checks each address that it connects to, after names have been resolved.
func (a Addresses) Dialer() *net.Dialer {
	return &net.Dialer{Timeout: DialTimeout, KeepAlive: 30 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return a.Check(to.Addr())
	}}
}
