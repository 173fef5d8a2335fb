// Package redirect sends the workload's connections through its proxy, as Istio's init container does: Apply puts rules
// into the network namespace of this thread, Remove takes them out, Plan prints them, and Validate tries them. Parse
// makes their Options. The rules are nftables', by netlink, or iptables' where the kernel has no nftables. Package
// command calls it for "node-agent init", and package cni for Pods without an init container.
package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// Mode is how inbound connections reach the proxy.
type Mode string

// The modes, as sidecar.istio.io/interceptionMode spells them.
const (
	Redirect Mode = "REDIRECT"
	TProxy   Mode = "TPROXY"
	None     Mode = "NONE"
)

// RawOptions are the Options as texts of flags, variables and annotations: lists are comma separated, "*" means all,
// and "" none.
type RawOptions struct {
	Mode                   string
	OutboundPort           string
	InboundPort            string
	TunnelPort             string
	ProxyUID               string
	ProxyGID               string
	InboundPorts           string
	InboundPortsExcluded   string
	OutboundPorts          string
	OutboundPortsExcluded  string
	OutboundRanges         string
	OutboundRangesExcluded string
	InterfacesExcluded     string
	VirtualInterfaces      string
	TProxyMark             string
	TProxyTable            string
	DNSPort                string
	ProbePort              string
	Backend                string
	RedirectDNS            bool
	CaptureAllDNS          bool
	DropInvalid            bool
	// Nameservers are the servers of resolv.conf; RedirectDNS redirects the queries to them.
	Nameservers []netip.Addr
}

// Options are checked RawOptions.
type Options struct {
	Mode                           Mode
	Backend                        Backend
	Outbound, Inbound, Tunnel, DNS uint16
	// Probe is the port that Validate connects to.
	Probe                                uint16
	UIDs, GIDs                           []uint32
	InboundPorts, InboundPortsExcluded   Ports
	OutboundPorts, OutboundPortsExcluded Ports
	Ranges, RangesExcluded               Ranges
	InterfacesExcluded                   []string
	VirtualInterfaces                    []string
	Mark, Table                          uint32
	RedirectDNS, CaptureAllDNS           bool
	DropInvalid                          bool
	Nameservers                          []netip.Addr
}

// Ports is a set of ports.
type Ports struct {
	All  bool
	List []uint16
}

// Ranges is a set of IP addresses.
type Ranges struct {
	All    bool
	V4, V6 []netip.Prefix
}

// Parse checks the texts. Its error names every flag that must be corrected.
func Parse(t RawOptions) (*Options, error) {
	p := &parser{}
	o := &Options{
		Mode:                  Mode(t.Mode),
		Outbound:              p.port("--envoy-port", t.OutboundPort),
		Inbound:               p.port("--inbound-capture-port", t.InboundPort),
		Tunnel:                p.port("--inbound-tunnel-port", t.TunnelPort),
		DNS:                   p.port("--dns-port", t.DNSPort),
		Probe:                 p.port("--iptables-probe-port", t.ProbePort),
		Backend:               Backend(t.Backend),
		UIDs:                  numbers(p, "--proxy-uid", t.ProxyUID, 32),
		GIDs:                  numbers(p, "--proxy-gid", t.ProxyGID, 32),
		InboundPorts:          p.ports("--istio-inbound-ports", t.InboundPorts),
		InboundPortsExcluded:  p.ports("--istio-local-exclude-ports", t.InboundPortsExcluded),
		OutboundPorts:         p.ports("--istio-outbound-ports", t.OutboundPorts),
		OutboundPortsExcluded: p.ports("--istio-local-outbound-ports-exclude", t.OutboundPortsExcluded),
		Ranges:                p.ranges("--istio-service-cidr", t.OutboundRanges),
		RangesExcluded:        p.ranges("--istio-service-exclude-cidr", t.OutboundRangesExcluded),
		InterfacesExcluded:    p.interfaces("--istio-exclude-interfaces", t.InterfacesExcluded),
		VirtualInterfaces:     p.interfaces("--kube-virt-interfaces", t.VirtualInterfaces),
		Mark:                  p.number("--istio-inbound-tproxy-mark", t.TProxyMark),
		Table:                 p.number("--istio-inbound-tproxy-route-table", t.TProxyTable),
		RedirectDNS:           t.RedirectDNS,
		CaptureAllDNS:         t.CaptureAllDNS,
		DropInvalid:           t.DropInvalid,
		Nameservers:           t.Nameservers,
	}
	switch o.Mode {
	case Redirect, TProxy, None:
	default:
		p.fail("--istio-inbound-interception-mode", t.Mode, "REDIRECT, TPROXY or NONE")
	}
	switch o.Backend {
	case Auto, NFTables, IPTables, IPTablesLegacy, IPTablesNFT:
	default:
		p.fail("--redirect-backend", t.Backend, "auto, nftables, iptables, iptables-legacy or iptables-nft")
	}
	if len(o.UIDs) == 0 && len(p.errs) == 0 {
		p.fail("--proxy-uid", t.ProxyUID, "the user that the proxy runs as: it must reach what it is asked for")
	}
	if o.InboundPortsExcluded.All {
		p.fail("--istio-local-exclude-ports", t.InboundPortsExcluded, "ports; to capture none give --istio-inbound-ports ''")
	}
	if o.OutboundPortsExcluded.All {
		p.fail("--istio-local-outbound-ports-exclude", t.OutboundPortsExcluded, "ports; to capture none give --istio-service-cidr ''")
	}
	if o.RangesExcluded.All {
		p.fail("--istio-service-exclude-cidr", t.OutboundRangesExcluded, "CIDR ranges; to capture none give --istio-service-cidr ''")
	}
	if o.RedirectDNS && !o.CaptureAllDNS && len(o.Nameservers) == 0 {
		p.errs = append(p.errs, errors.New(
			"--redirect-dns: resolv.conf names no server whose queries could be redirected: give --capture-all-dns or --resolv-conf"))
	}
	if err := errors.Join(p.errs...); err != nil {
		return nil, err
	}
	return o, nil
}

type parser struct{ errs []error }

func (p *parser) fail(flag, value, want string) {
	p.errs = append(p.errs, fmt.Errorf("%s %q: want %s", flag, value, want))
}

// maxItems is how many items a list may have: rules with more fit into no transaction.
const maxItems = 2000

func (p *parser) items(flag, list string) []string {
	var out []string
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	if len(out) > maxItems {
		p.errs = append(p.errs, fmt.Errorf("%s has %d items: want at most %d; write wider ranges", flag, len(out), maxItems))
		return nil
	}
	return out
}

// numbers parses a list of whole numbers of at most that many bits.
func numbers(p *parser, flag, list string, bits int) []uint32 {
	var out []uint32
	for _, item := range p.items(flag, list) {
		n, err := strconv.ParseUint(item, 10, bits)
		if err != nil {
			p.fail(flag, list, fmt.Sprintf("whole numbers below %d, comma separated", uint64(1)<<bits))
			return nil
		}
		out = append(out, uint32(n))
	}
	return out
}

func (p *parser) number(flag, v string) uint32 {
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil || n == 0 {
		p.fail(flag, v, "a whole number above 0")
	}
	return uint32(n)
}

func (p *parser) port(flag, v string) uint16 {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n == 0 {
		p.fail(flag, v, "a port, 1 to 65535")
	}
	return uint16(n)
}

func (p *parser) ports(flag, list string) Ports {
	if strings.TrimSpace(list) == "*" {
		return Ports{All: true}
	}
	var out Ports
	for _, n := range numbers(p, flag, list, 16) {
		if n == 0 {
			p.fail(flag, list, "ports, 1 to 65535, comma separated")
		}
		out.List = append(out.List, uint16(n))
	}
	return out
}

func (p *parser) ranges(flag, list string) Ranges {
	if strings.TrimSpace(list) == "*" {
		return Ranges{All: true}
	}
	var out Ranges
	for _, item := range p.items(flag, list) {
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			var address netip.Addr
			if address, err = netip.ParseAddr(item); err == nil && address.Zone() == "" {
				prefix = netip.PrefixFrom(address, address.BitLen())
			}
		}
		if err != nil || !prefix.IsValid() {
			p.fail(flag, list, "CIDR ranges, comma separated, or *")
			return Ranges{}
		}
		if prefix = prefix.Masked(); prefix.Addr().Is4() {
			out.V4 = append(out.V4, prefix)
		} else {
			out.V6 = append(out.V6, prefix)
		}
	}
	return out
}

// interfaceName restricts names to characters that are safe in the text of a rule; the kernel allows more.
var interfaceName = regexp.MustCompile(`^[A-Za-z0-9_.@-]{1,15}$`)

func (p *parser) interfaces(flag, list string) []string {
	out := p.items(flag, list)
	for _, name := range out {
		if !interfaceName.MatchString(name) {
			p.fail(flag, list, "names of network interfaces, comma separated")
			return nil
		}
	}
	return out
}
