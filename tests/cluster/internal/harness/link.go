package harness

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// linkEnd is one end of a link: a cluster, in whose first node's network it has an interface.
type linkEnd struct {
	dir       Dir
	addresses addresses
	// name is that of the interface, which names the cluster at the other end.
	name      string
	namespace *os.File
	network   *netlink.Handle
}

// Link joins two clusters that are up by an interface between their first nodes. Nodes reach the other cluster's nodes,
// and so do Pods, with their node's address as sender; with pods, Pods reach the other's Pods, and see who calls. A
// link that is there is replaced. Down of either cluster ends it, and so does Unlink.
func Link(a, b Dir, pods bool, out io.Writer) error {
	ends, err := openEnds(a, b)
	if err != nil {
		return err
	}
	defer closeEnds(ends)
	if err := cut(ends); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = ends[0].name
	if err := ends[0].network.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: ends[1].name,
		PeerNamespace: netlink.NsFd(int(ends[1].namespace.Fd()))}); err != nil {
		return fmt.Errorf("make the interfaces between the clusters: %w", err)
	}
	for i, e := range ends {
		if err := e.connect(ends[1-i], pods); err != nil {
			return errors.Join(err, cut(ends))
		}
	}
	what := "nodes alone"
	if pods {
		what = "nodes and Pods"
	}
	fmt.Fprintf(out, "the clusters in %s and %s reach each other, %s; `cluster unlink` ends it\n", a, b, what)
	return nil
}

// Unlink removes a link, as if a cable were cut; without a link it does nothing.
func Unlink(a, b Dir) error {
	ends, err := openEnds(a, b)
	if err != nil {
		return err
	}
	defer closeEnds(ends)
	return cut(ends)
}

// unlinkAll removes the links of the cluster whose process 1 is given: else the other ends stay until the kernel has
// removed its network, which may take minutes after its processes have ended.
func unlinkAll(pid int) error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil //nolint:nilerr // it has ended meanwhile
	}
	defer namespace.Close()
	network, err := netlink.NewHandleAt(netns.NsHandle(namespace.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer network.Close()
	for index := range maxIndex + 1 {
		if link, err := network.LinkByName(linkName(index)); err == nil {
			if err := network.LinkDel(link); err != nil {
				return fmt.Errorf("remove interface %s: %w", linkName(index), err)
			}
		}
	}
	return nil
}

// linkName is the interface to the cluster with an index.
func linkName(index int) string { return fmt.Sprintf("cluster%d", index) }

func openEnds(a, b Dir) (ends []*linkEnd, err error) {
	if err := checkRoot(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeEnds(ends)
		}
	}()
	var indexes []int
	for _, d := range []Dir{a, b} {
		pid, err := d.Up()
		if err != nil {
			return ends, fmt.Errorf("%w; `make cluster-up` starts one", err)
		}
		index, err := d.Index()
		if err != nil {
			return ends, err
		}
		e := &linkEnd{dir: d, addresses: addressesOf(index)}
		if e.namespace, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil {
			return ends, err
		}
		ends, indexes = append(ends, e), append(indexes, index)
		if e.network, err = netlink.NewHandleAt(netns.NsHandle(e.namespace.Fd()), unix.NETLINK_ROUTE); err != nil {
			return ends, fmt.Errorf("the network of the cluster in %s: %w", d, err)
		}
	}
	if indexes[0] == indexes[1] {
		return ends, fmt.Errorf("the clusters in %s and %s have the same index, %d, and so the same addresses; start one of them with another "+
			"--index, or CLUSTER_INDEX", a, b, indexes[0])
	}
	for i, e := range ends {
		e.name = linkName(indexes[1-i])
	}
	return ends, nil
}

func closeEnds(ends []*linkEnd) {
	for _, e := range ends {
		e.namespace.Close()
		if e.network != nil {
			e.network.Close()
		}
	}
}

// cut removes the interfaces of a link, with all routes, and the rules.
func cut(ends []*linkEnd) error {
	for _, e := range ends {
		// The interface at the other end goes with the first.
		if link, err := e.network.LinkByName(e.name); err == nil {
			if err := e.network.LinkDel(link); err != nil {
				return fmt.Errorf("remove interface %s of the cluster in %s: %w", e.name, e.dir, err)
			}
		}
		if err := e.nft("table ip " + e.name + "\ndelete table ip " + e.name + "\n"); err != nil {
			return err
		}
	}
	return nil
}

// connect routes to the cluster at the other end.
func (e *linkEnd) connect(other *linkEnd, pods bool) error {
	link, err := linkUp(e.network, e.name)
	if err != nil {
		return err
	}
	there := netip.PrefixFrom(other.addresses.node, 32)
	err = e.network.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(e.addresses.node, 32)), Peer: ipNet(there)})
	if err != nil {
		return fmt.Errorf("%s: %w", e.name, err)
	}
	to := []netip.Prefix{netip.PrefixFrom(other.addresses.second, 32)}
	if pods {
		to = append(to, other.addresses.pods)
	}
	for _, p := range to {
		if err := e.network.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(p), Gw: there.Addr().AsSlice()}); err != nil {
			return fmt.Errorf("route to %s: %w", p, err)
		}
	}
	if pods {
		return nil
	}
	// The other cluster has no way back to a Pod.
	return e.nft(fmt.Sprintf("table ip %s {\n chain post {\n  type nat hook postrouting priority srcnat;\n"+
		"  ip saddr %s oifname %q masquerade\n }\n}\n", e.name, e.addresses.pods, e.name))
}

// nft applies rules in the cluster's network.
func (e *linkEnd) nft(rules string) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(e.namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network of the cluster in %s: %w", e.dir, err)
			return
		}
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if said, err := cmd.CombinedOutput(); err != nil {
			done <- fmt.Errorf("nft: %w: %s", err, said)
			return
		}
		done <- nil
	}()
	return <-done
}
