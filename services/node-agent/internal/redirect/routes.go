package redirect

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hasIPv6 reports whether this network namespace has IPv6.
func hasIPv6() bool {
	_, err := os.Stat("/proc/thread-self/net/if_inet6")
	return err == nil
}

// hasIPv6Loopback reports whether the loopback interface has IPv6.
func hasIPv6Loopback() bool {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
	return err == nil && strings.TrimSpace(string(off)) == "0"
}

// setPassthrough gives the loopback interface passthroughV6, or takes it away. Unlike passthroughV4, which is in
// 127.0.0.0/8, it is not there by itself.
func setPassthrough(there bool) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback interface by netlink: %w", err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(passthroughV6), Mask: net.CIDRMask(128, 128)}}
	if there {
		if err := netlink.AddrReplace(lo, address); err != nil {
			return fmt.Errorf("add address %s to the loopback interface by netlink: %w", passthroughV6, err)
		}
		return nil
	}
	if err := netlink.AddrDel(lo, address); err != nil && !absent(err) {
		return fmt.Errorf("delete address %s of the loopback interface by netlink: %w", passthroughV6, err)
	}
	return nil
}

// absent reports whether what shall be deleted is not there, or cannot be since the family is not.
func absent(err error) bool {
	for _, no := range []error{unix.ENOENT, unix.ESRCH, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.ENODEV} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// routeFamilies are the address families of this network namespace.
func routeFamilies() []int {
	if hasIPv6() {
		return []int{netlink.FAMILY_V4, netlink.FAMILY_V6}
	}
	return []int{netlink.FAMILY_V4}
}

// markRule sends marked packets to the routing table of TPROXY.
func markRule(o *Options, family int) *netlink.Rule {
	out := netlink.NewRule()
	out.Family, out.Mark, out.Table = family, o.Mark, int(o.Table)
	return out
}

// localRoute delivers packets to this machine whatever their address.
func localRoute(o *Options, family int, lo netlink.Link) *netlink.Route {
	all := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if family == netlink.FAMILY_V6 {
		all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &netlink.Route{
		Family: family, Dst: all, Table: int(o.Table), Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, LinkIndex: lo.Attrs().Index,
	}
}

// setRoutes makes the routes of TPROXY, which deliver marked packets to this machine, or removes them.
func setRoutes(o *Options, there bool) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback interface by netlink: %w", err)
	}
	for _, family := range routeFamilies() {
		for { // an interrupted run, or two at once, may have left several
			err := netlink.RuleDel(markRule(o, family))
			if err == nil {
				continue
			}
			if !absent(err) {
				return fmt.Errorf("delete the routing rule for mark %d by netlink: %w", o.Mark, err)
			}
			break
		}
		if err := netlink.RouteDel(localRoute(o, family, lo)); err != nil && !absent(err) {
			return fmt.Errorf("delete the route of table %d by netlink: %w", o.Table, err)
		}
		if !there {
			continue
		}
		if err := netlink.RuleAdd(markRule(o, family)); err != nil {
			return fmt.Errorf("add a routing rule for mark %d by netlink: %w", o.Mark, err)
		}
		if err := netlink.RouteReplace(localRoute(o, family, lo)); err != nil {
			return fmt.Errorf("add a route to table %d by netlink: %w", o.Table, err)
		}
	}
	return nil
}

// routePlan describes what setRoutes and setPassthrough do, for people, as arguments of the program ip.
func routePlan(o *Options) string {
	var b strings.Builder
	if o.Mode != None && hasIPv6Loopback() {
		fmt.Fprintf(&b, "# ip -6 addr replace %s/128 dev lo\n", passthroughV6)
	}
	if o.Mode == TProxy {
		for _, family := range routeFamilies() {
			option := map[int]string{netlink.FAMILY_V4: "-4", netlink.FAMILY_V6: "-6"}[family]
			fmt.Fprintf(&b, "# ip %s rule add fwmark %d lookup %d\n", option, o.Mark, o.Table)
			fmt.Fprintf(&b, "# ip %s route add local default dev lo table %d\n", option, o.Table)
		}
	}
	return b.String()
}
