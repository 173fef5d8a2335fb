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

// The cluster's addresses are of ranges for documentation and benchmarks, which no network of this machine has.
var (
	nodeIP      = netip.MustParseAddr("192.0.2.10")
	podRange    = netip.MustParsePrefix("198.18.0.0/16")
	nodePods    = netip.MustParsePrefix("198.18.0.0/24")
	serviceIPs  = netip.MustParsePrefix("198.19.0.0/16")
	dns         = netip.MustParseAddr("198.19.0.10")
	apiAddress  = netip.AddrPortFrom(nodeIP, 6443)
	etcdAddress = netip.MustParseAddrPort("127.0.0.1:2379")
	etcdPeer    = netip.MustParseAddrPort("127.0.0.1:2380")
)

const (
	domain   = "cluster.local"
	nodeName = "node"
)

// network prepares the node's network namespace. Its uplink leads nowhere: addresses that are not the cluster's cannot
// be reached. The route there is needed all the same, because a connection of the node to a Service's address is routed
// before its destination changes.
func network() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "node0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "nowhere"}); err != nil {
		return fmt.Errorf("make the node's interface: %w", err)
	}
	for _, name := range []string{"nowhere", "node0"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if name != "node0" {
			continue
		}
		mask := net.CIDRMask(24, 32)
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: nodeIP.AsSlice(), Mask: mask}}); err != nil {
			return fmt.Errorf("node0: %w", err)
		}
		all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all, Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("default route: %w", err)
		}
	}
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
