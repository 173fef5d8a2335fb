package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The addresses of a network. Machines are in the small ranges; all other addresses are the hub's to refuse, unless it
// translates them.
var (
	hub      = netip.MustParsePrefix("198.18.0.1/20")
	hub6     = netip.MustParsePrefix("fd18::1/64")
	ownRange = hub.Masked()
	own6     = hub6.Masked()
)

// device is a machine's way to the network.
const device = "eth0"

// Network is a bridge in a machine of its own, the hub, to which other machines are plugged. Like a node of a cluster,
// the hub routes between them, so that it can stand for addresses that no machine has (Translate), with machines none
// the wiser. There is no way out of it: connections to all other addresses are refused at once.
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
	// The bridge has an address of its own: otherwise it takes the lowest of its ports, and machines that are there
	// would look for the old one.
	links := "link set lo up\nlink add br0 address 02:00:00:00:00:01 type bridge\naddr add " + hub.String() + " dev br0\n"
	if ipv6 {
		h.IP6 = hub6.Addr()
		links += "addr add " + hub6.String() + " dev br0 nodad\n"
	}
	// So that looking for a machine that is not there takes no seconds.
	links += "link set br0 up\nntable change name arp_cache dev br0 retrans 50\n"
	if err := errors.Join(h.In(route), h.Run(links, "ip", "-batch", "-"), h.Run(refusal, "nft", "-f", "-")); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return n, nil
}

// route makes a router of the machine of the calling thread, one that does not tell others of shorter ways.
func route() error {
	var failed []error
	for name, value := range map[string]string{
		"ipv4/ip_forward": "1", "ipv4/conf/all/send_redirects": "0", "ipv4/conf/default/send_redirects": "0", "ipv6/conf/all/forwarding": "1",
	} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Translate makes the hub stand for addresses: connections to each go on to one of its backends, by chance. It replaces
// what was said before; connections that are open stay where they are.
func (n *Network) Translate(to map[netip.AddrPort][]netip.AddrPort) error {
	return n.Hub.Run(translation(to), "nft", "-f", "-")
}

func translation(to map[netip.AddrPort][]netip.AddrPort) string {
	var rules, chains strings.Builder
	known := map[netip.AddrPort]bool{}
	for _, from := range slices.SortedFunc(maps.Keys(to), netip.AddrPort.Compare) {
		backends := to[from]
		if len(backends) == 0 {
			continue
		}
		var choice []string
		for i, b := range backends {
			choice = append(choice, fmt.Sprintf("%d : goto %s", i, chain(b)))
			if !known[b] {
				known[b] = true
				fmt.Fprintf(&chains, "\tchain %s { meta l4proto tcp dnat %s to %s; }\n", chain(b), family(b.Addr()), b)
			}
		}
		fmt.Fprintf(&rules, "\t\t%s daddr %s tcp dport %d numgen random mod %d vmap { %s }\n", family(from.Addr()), from.Addr(), from.Port(),
			len(backends), strings.Join(choice, ", "))
	}
	return "table inet services\ndelete table inet services\ntable inet services {\n" + chains.String() +
		"\tchain prerouting {\n\t\ttype nat hook prerouting priority -100;\n" + rules.String() + "\t}\n}\n"
}

func family(ip netip.Addr) string {
	if ip.Is6() {
		return "ip6"
	}
	return "ip"
}

// chain is the name of a backend's.
func chain(b netip.AddrPort) string {
	return "to_" + strings.NewReplacer(".", "_", ":", "_").Replace(b.Addr().String()) + "__" + strconv.Itoa(int(b.Port()))
}

// refusal answers for everybody whom nobody is.
var refusal = fmt.Sprintf(`
table inet refusal {
	set others { type ipv4_addr; }
	set others6 { type ipv6_addr; }
	chain prerouting {
		type filter hook prerouting priority 0;
		iifname != br0 accept
		ip daddr %[1]s accept
		ip daddr @others accept
		ip6 daddr @others6 accept
		ip6 daddr { %[2]s, fe80::/10, ff00::/8 } accept
		ip daddr { 224.0.0.0/4, 255.255.255.255 } drop
		meta l4proto tcp reject with tcp reset
		reject
	}
}
`, ownRange, own6)

// Plug connects machines to the network, and gives an address to those that have none.
func (n *Network) Plug(hosts ...*Host) error {
	n.mu.Lock()
	first := n.next
	n.next += len(hosts)
	n.mu.Unlock()
	var cables strings.Builder
	for i, h := range hosts {
		h.hub = n.Hub
		if !h.IP.IsValid() {
			h.IP = nth(ownRange, first+i)
		}
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
		wg.Go(func() {
			failed[i] = errors.Join(
				h.Run(n.setup(h), "ip", "-batch", "-"), h.In(up(device)), n.Hub.In(up(fmt.Sprintf("w%d", first+i))), n.Hub.In(up("br0")))
			if n.ipv6 && failed[i] == nil {
				failed[i] = errors.Join(h.In(reach(n.Hub.IP6)), n.Hub.In(reach(h.IP6)))
			}
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

// up waits until a device of the calling thread's machine carries packets and answers for its addresses. The kernel
// sees to that some time after it was told, seconds later where many networks come and go, and until then machines look
// for each other in vain.
func up(name string) func() error {
	return func() error {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(time.Minute); ; <-tick.C {
			d, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			if d.Flags&net.FlagRunning != 0 && !tentative(name) {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("device %s is not up a minute after it was set up", name)
			}
		}
	}
}

// reach waits until another machine answers the calling thread's. The kernel joins the group in which a machine is
// asked for its IPv6 address some time after the device is up; who asks before waits for seconds, and is told that
// there is no route.
func reach(other netip.Addr) func() error {
	return func() error {
		closed := netip.AddrPortFrom(other, 1).String()
		d := net.Dialer{Timeout: 100 * time.Millisecond}
		for deadline := time.Now().Add(time.Minute); ; {
			conn, err := d.Dial("tcp", closed)
			switch {
			case err == nil:
				return conn.Close()
			case errors.Is(err, unix.ECONNREFUSED):
				return nil
			case time.Now().After(deadline):
				return fmt.Errorf("%s does not answer a minute after it was plugged: %w", other, err)
			case !errors.Is(err, os.ErrDeadlineExceeded):
				time.Sleep(10 * time.Millisecond)
			}
		}
	}
}

// tentative tells whether a device of the calling thread's machine has a global IPv6 address that it does not answer
// for yet.
func tentative(name string) bool {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return false // the caller looks for it itself
	}
	addresses, _ := netlink.AddrList(link, netlink.FAMILY_V6) // an error is that there is no IPv6
	return slices.ContainsFunc(addresses, func(a netlink.Addr) bool {
		return a.Scope == unix.RT_SCOPE_UNIVERSE && a.Flags&unix.IFA_F_TENTATIVE != 0
	})
}

func (n *Network) setup(h *Host) string {
	var out strings.Builder
	// Alone in its range: the way to all others is by the hub.
	fmt.Fprintf(&out, "link set lo up\naddr add %s/32 dev %s\n", h.IP, device)
	if n.ipv6 {
		fmt.Fprintf(&out, "addr add %s/128 dev %s nodad\n", h.IP6, device)
	}
	fmt.Fprintf(&out, "link set %s up\nroute add %s dev %[1]s\nroute add default via %[2]s\n", device, hub.Addr())
	if n.ipv6 {
		fmt.Fprintf(&out, "route add %s dev %s\nroute add ::/0 via %[1]s\n", hub6.Addr(), device)
	}
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
