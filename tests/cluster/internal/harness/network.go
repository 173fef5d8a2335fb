package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"

	"github.com/vishvananda/netlink"
)

var (
	etcdAddress = netip.MustParseAddrPort("127.0.0.1:2379")
	etcdPeer    = netip.MustParseAddrPort("127.0.0.1:2380")
)

const (
	domain   = "cluster.local"
	nodeName = "node"
	// uplink is the interface with a node's address.
	uplink = "node0"
)

// network prepares the namespace of a node with an address. Its uplink leads nowhere: addresses that are not the
// cluster's cannot be reached. The route there is needed all the same, because a connection of the node to a Service's
// address is routed before its destination changes.
func network(node netip.Addr) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = uplink
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "nowhere"}); err != nil {
		return fmt.Errorf("make the node's interface: %w", err)
	}
	for _, name := range []string{"lo", "nowhere", uplink} {
		if _, err := linkUp(&netlink.Handle{}, name); err != nil {
			return err
		}
	}
	link, err := linkUp(&netlink.Handle{}, uplink)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(node, 24))}); err != nil {
		return fmt.Errorf("%s: %w", uplink, err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: everywhere, Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return forward()
}

// everywhere is the destination of a default route.
var everywhere = ipNet(netip.MustParsePrefix("0.0.0.0/0"))

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// linkUp switches an interface of a namespace on.
func linkUp(in *netlink.Handle, name string) (netlink.Link, error) {
	link, err := in.LinkByName(name)
	if err == nil {
		err = in.LinkSetUp(link)
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	return link, nil
}

// forward has the node forward packets between its pods, and to others.
func forward() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return err
	}
	// Without it, answers between two pods cross the bridge with the pod's address in place of the Service's.
	const bridged = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	if _, err := os.Stat(bridged); errors.Is(err, fs.ErrNotExist) {
		if said, err := exec.Command("modprobe", "br_netfilter").CombinedOutput(); err != nil {
			return fmt.Errorf("the kernel has no br_netfilter, which Services need: modprobe br_netfilter: %w: %s", err, said)
		}
	}
	return os.WriteFile(bridged, []byte("1"), 0o644)
}
