package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
)

// The addresses of a network. Machines are in the small ranges, where they find each other directly; all other addresses are the hub's to refuse.
var (
	hub      = netip.MustParsePrefix("198.18.0.1/20")
	hub6     = netip.MustParsePrefix("fd18::1/64")
	ownRange = hub.Masked()
	own6     = hub6.Masked()
)

// device is a machine's way to the network.
const device = "eth0"

// Network is a bridge in a machine of its own, the hub, to which other machines are plugged. There is no way out of it: connections to
// addresses that no machine has are refused at once.
type Network struct {
	Hub *Host

	ipv6 bool
	mu   sync.Mutex
	next int
}

// NewNetwork makes one without machines but the hub.
func NewNetwork(name string, ipv6 bool) (*Network, error) {
	h, err := New(name)
	if err != nil {
		return nil, err
	}
	n := &Network{Hub: h, ipv6: ipv6, next: 10}
	h.IP = hub.Addr()
	// The bridge has an address of its own: otherwise it takes the lowest of its ports, and machines that are there would look for the old one.
	links := "link set lo up\nlink add br0 address 02:00:00:00:00:01 type bridge\naddr add " + hub.String() + " dev br0\n"
	if ipv6 {
		h.IP6 = hub6.Addr()
		links += "addr add " + hub6.String() + " dev br0 nodad\n"
	}
	links += "link set br0 up\n"
	if err := errors.Join(h.Run(links, "ip", "-batch", "-"), h.Run(refusal, "nft", "-f", "-")); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return n, nil
}

// refusal answers for everybody whom nobody is.
var refusal = fmt.Sprintf(`
table inet refusal {
	chain prerouting {
		type filter hook prerouting priority 0;
		iifname != br0 accept
		ip daddr %[1]s accept
		ip6 daddr { %[2]s, fe80::/10, ff00::/8 } accept
		ip daddr { 224.0.0.0/4, 255.255.255.255 } drop
		meta l4proto tcp reject with tcp reset
		reject
	}
}
`, ownRange, own6)

// Plug connects machines to the network and gives them addresses.
func (n *Network) Plug(hosts ...*Host) error {
	n.mu.Lock()
	first := n.next
	n.next += len(hosts)
	n.mu.Unlock()
	var cables strings.Builder
	for i, h := range hosts {
		h.IP = nth(ownRange, first+i)
		fmt.Fprintf(&cables, "link add w%d type veth peer name %s netns %s\nlink set w%[1]d master br0 up\n", first+i, device, h.path())
		if n.ipv6 {
			h.IP6 = nth(own6, first+i)
		}
	}
	if err := n.Hub.Run(cables.String(), "ip", "-batch", "-"); err != nil {
		return err
	}
	failed := make([]error, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() { failed[i] = h.Run(n.setup(h), "ip", "-batch", "-") })
	}
	wg.Wait()
	return errors.Join(failed...)
}

func (n *Network) setup(h *Host) string {
	var out strings.Builder
	fmt.Fprintf(&out, "link set lo up\naddr add %s/%d dev %s\n", h.IP, hub.Bits(), device)
	if n.ipv6 {
		fmt.Fprintf(&out, "addr add %s/%d dev %s nodad\n", h.IP6, hub6.Bits(), device)
	}
	fmt.Fprintf(&out, "link set %s up\nroute add default via %s\n", device, hub.Addr())
	if n.ipv6 {
		fmt.Fprintf(&out, "route add ::/0 via %s\n", hub6.Addr())
	}
	// So that looking for a machine that is not there takes no seconds.
	fmt.Fprintf(&out, "ntable change name arp_cache dev %s retrans 50\n", device)
	return out.String()
}

// nth is address number i of a range.
func nth(in netip.Prefix, i int) netip.Addr {
	raw := in.Addr().AsSlice()
	raw[len(raw)-1] += byte(i)
	raw[len(raw)-2] += byte(i >> 8)
	ip, _ := netip.AddrFromSlice(raw)
	return ip
}
