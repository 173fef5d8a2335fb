package redirect

import (
	"fmt"
	"net/netip"
	"strings"
)

// Addresses and marks of Istio's redirection.
const (
	// passthroughV4 and passthroughV6 are the source addresses of the proxy's connections to its application.
	passthroughV4 = "127.0.0.6"
	passthroughV6 = "::6"

	dnsPort = 53
)

// table is the nftables table that holds all rules, so that other rules stay untouched.
const table = "inet fairlead"

// chain is a chain of rules; hook is "" for one that other chains jump to.
type chain struct {
	name, hook string
	rules      []string
}

// rule adds a rule.
func (c *chain) rule(format string, args ...any) {
	c.rules = append(c.rules, fmt.Sprintf(format, args...))
}

// chains returns the chains for the options; none with mode NONE.
func chains(o *Options) []*chain {
	if o.Mode == None {
		return nil
	}
	out := []*chain{{name: "proxy"}, {name: "outbound"}, {name: "output", hook: "type nat hook output priority -100"}}
	proxy, outbound, output := out[0], out[1], out[2]
	proxyChain(o, proxy)
	outboundChain(o, outbound)
	outputChain(o, output)
	prerouting := &chain{name: "prerouting", hook: "type nat hook prerouting priority -100"}
	for _, set := range sets("iifname", quoted(o.InterfacesExcluded)) {
		prerouting.rule("%s accept", set)
	}
	for _, set := range sets("iifname", quoted(o.VirtualInterfaces)) {
		prerouting.rule("%s meta l4proto tcp goto outbound", set)
	}
	if o.Mode == Redirect {
		if match, ok := inbound(o, prerouting); ok {
			prerouting.rule("%s redirect to :%d", match, o.Inbound)
		}
	}
	out = append(out, prerouting)
	if o.RedirectDNS {
		out = append(out, dnsChains(o, output)...)
	}
	if o.Mode == TProxy {
		out = append(out, tproxyChains(o)...)
	}
	if o.DropInvalid {
		invalid := &chain{name: "stray", hook: "type filter hook prerouting priority -160"}
		invalid.rule("ct state invalid drop")
		out = append(out, invalid)
	}
	return out
}

// proxyChain is for the proxy's own connections, which it accepts. One to the workload's own address is a call of the
// workload to itself through its proxy; proxyChain redirects it to the inbound port, like a call from outside.
func proxyChain(o *Options, c *chain) {
	if o.Mode == Redirect {
		for _, other := range []string{"ip daddr != 127.0.0.1", "ip6 daddr != ::1"} {
			c.rule(`oifname "lo" %s tcp dport != { %d, %d } redirect to :%d`, other, dnsPort, o.Tunnel, o.Inbound)
		}
	}
	c.rule("accept")
}

// outboundChain redirects connections to the proxy by address and port.
func outboundChain(o *Options, c *chain) {
	for _, set := range addresses("ip daddr", o.RangesExcluded.V4) {
		c.rule("%s accept", set)
	}
	for _, set := range addresses("ip6 daddr", o.RangesExcluded.V6) {
		c.rule("%s accept", set)
	}
	to := fmt.Sprintf("redirect to :%d", o.Outbound)
	switch {
	case o.Ranges.All, o.OutboundPorts.All:
		c.rule("meta l4proto tcp %s", to)
		return
	case len(o.OutboundPorts.List) > 0:
		c.rule("tcp dport %s %s", ports(o.OutboundPorts.List), to)
	}
	for _, set := range append(addresses("ip daddr", o.Ranges.V4), addresses("ip6 daddr", o.Ranges.V6)...) {
		c.rule("%s meta l4proto tcp %s", set, to)
	}
}

// outputChain passes each connection opened in this namespace to one of the other chains, or accepts it.
func outputChain(o *Options, c *chain) {
	for _, set := range sets("oifname", quoted(o.InterfacesExcluded)) {
		c.rule("%s accept", set)
	}
	if len(o.OutboundPortsExcluded.List) > 0 {
		c.rule("tcp dport %s accept", ports(o.OutboundPortsExcluded.List))
	}
	if o.RedirectDNS {
		c.rule("meta l4proto { tcp, udp } th dport %d jump dns", dnsPort)
	}
	c.rule("meta l4proto != tcp accept")
	c.rule(`oifname "lo" ip saddr %s accept`, passthroughV4)
	c.rule(`oifname "lo" ip6 saddr %s accept`, passthroughV6)
	for _, owner := range owners(o) {
		c.rule("%s goto proxy", owner)
	}
	c.rule(`oifname "lo" accept`)
	c.rule("goto outbound")
}

// inbound adds rules that accept the inbound connections not to capture, and returns the match for those to capture;
// false if there are none.
func inbound(o *Options, c *chain) (match string, ok bool) {
	if !o.InboundPorts.All && len(o.InboundPorts.List) == 0 {
		return "", false
	}
	c.rule("meta l4proto != tcp accept")
	c.rule("tcp dport %d accept", o.Tunnel)
	if !o.InboundPorts.All {
		return "tcp dport " + ports(o.InboundPorts.List), true
	}
	if len(o.InboundPortsExcluded.List) > 0 {
		c.rule("tcp dport %s accept", ports(o.InboundPortsExcluded.List))
	}
	return "meta l4proto tcp", true
}

// dnsChains redirect DNS queries to the DNS proxy, except the agent's own. The agent's queries are not tracked: one
// from a port that the application has just used would match the application's connection and be redirected too.
func dnsChains(o *Options, output *chain) []*chain {
	dns := &chain{name: "dns"}
	raw := &chain{name: "own_dns", hook: "type filter hook output priority -300"}
	for _, owner := range owners(o) {
		dns.rule("%s return", owner)
		raw.rule("%s udp dport %d notrack", owner, dnsPort)
	}
	to := fmt.Sprintf("redirect to :%d", o.DNS)
	if o.CaptureAllDNS {
		dns.rule("meta l4proto { tcp, udp } %s", to)
		return []*chain{dns, raw}
	}
	var v4, v6 []netip.Prefix
	for _, server := range o.Nameservers {
		if server.Is4() {
			v4 = append(v4, netip.PrefixFrom(server, 32))
		} else {
			v6 = append(v6, netip.PrefixFrom(server, 128))
		}
	}
	for _, set := range append(addresses("ip daddr", v4), addresses("ip6 daddr", v6)...) {
		dns.rule("%s meta l4proto { tcp, udp } %s", set, to)
	}
	return []*chain{dns, raw}
}

// tproxyChains pass inbound connections to the proxy with both addresses unchanged. The proxy's connections to the
// application, which have the client's source address, carry Mark. The application's answers get Mark from the
// connection, so that they are routed back to this machine. Calls of the workload to itself through its proxy carry
// Mark+1.
func tproxyChains(o *Options) []*chain {
	in := &chain{name: "inbound", hook: "type filter hook prerouting priority -150"}
	for _, set := range sets("iifname", quoted(o.InterfacesExcluded)) {
		in.rule("%s accept", set)
	}
	in.rule("ct direction reply accept")
	in.rule(`iifname "lo" meta mark %d meta l4proto tcp ct mark set %d accept`, o.Mark, o.Mark)
	in.rule("meta mark %d accept", o.Mark)
	in.rule(`iifname "lo" meta mark != %d accept`, o.Mark+1)
	if match, ok := inbound(o, in); ok {
		in.rule("%s tproxy to :%d meta mark set %d accept", match, o.Inbound, o.Mark)
	}
	out := &chain{name: "marks", hook: "type route hook output priority -150"}
	out.rule("meta l4proto != tcp accept")
	out.rule("ct direction reply ct mark %d meta mark set %d accept", o.Mark, o.Mark)
	out.rule("ct direction reply accept")
	out.rule("meta mark %d accept", o.Mark)
	for _, owner := range owners(o) {
		for _, other := range []string{"ip daddr != 127.0.0.1", "ip6 daddr != ::1"} {
			out.rule(`oifname "lo" %s %s tcp dport != { %d, %d } meta mark set %d accept`, other, owner, dnsPort, o.Tunnel, o.Mark+1)
		}
	}
	return []*chain{in, out}
}

// owners matches the sockets of proxy and agent.
func owners(o *Options) []string {
	return append(sets("meta skuid", each(o.UIDs)), sets("meta skgid", each(o.GIDs))...)
}

func each[T any](list []T) []string {
	var out []string
	for _, item := range list {
		out = append(out, fmt.Sprint(item))
	}
	return out
}

func quoted(names []string) []string {
	var out []string
	for _, name := range names {
		out = append(out, `"`+name+`"`)
	}
	return out
}

// sets returns the match of what against a set, or nothing if the list is empty.
func sets(what string, list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return []string{what + " { " + strings.Join(list, ", ") + " }"}
}

// addresses is sets for ranges. It leaves out ranges within others, since a set cannot hold overlapping ones.
func addresses(what string, list []netip.Prefix) []string {
	var kept []netip.Prefix
	for i, p := range list {
		within := false
		for j, q := range list {
			within = within || q.Bits() < p.Bits() && q.Overlaps(p) || q == p && j < i
		}
		if !within {
			kept = append(kept, p)
		}
	}
	return sets(what, each(kept))
}

func ports(list []uint16) string { return "{ " + strings.Join(each(list), ", ") + " }" }

// script is the nft transaction that replaces the table by one with these chains. It creates the table first, since it
// could not delete an absent one.
func script(all []*chain) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s\ndelete table %s\n", table, table)
	if len(all) == 0 {
		return b.String()
	}
	fmt.Fprintf(&b, "table %s {\n", table)
	for _, c := range all {
		fmt.Fprintf(&b, "\tchain %s {\n", c.name)
		if c.hook != "" {
			fmt.Fprintf(&b, "\t\t%s;\n", c.hook)
		}
		for _, rule := range c.rules {
			fmt.Fprintf(&b, "\t\t%s\n", rule)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}
