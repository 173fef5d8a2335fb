package redirect

import (
	"net/netip"

	"fairlead.dev/pkg/lists"
)

// Addresses of Istio's redirection.
const (
	// passthroughV4 and passthroughV6 are the source addresses of the proxy's connections to its application.
	passthroughV4 = "127.0.0.6"
	passthroughV6 = "::6"

	dnsPort = 53
)

// The hooks of the chains.
var (
	natOutput      = &hook{"nat", "output", -100}
	natPrerouting  = &hook{"nat", "prerouting", -100}
	strayPackets   = &hook{"filter", "prerouting", -160}
	beforeTracking = &hook{"filter", "output", -300}
	tproxyInbound  = &hook{"filter", "prerouting", -150}
	tproxyOutput   = &hook{"route", "output", -150}
)

// chains returns the chains for the options; none with mode NONE.
func chains(o *Options) []*chain {
	if o.Mode == None {
		return nil
	}
	out := []*chain{{name: "proxy"}, {name: "outbound"}, {name: "output", hook: natOutput}}
	proxy, outbound, output := out[0], out[1], out[2]
	proxyChain(o, proxy)
	outboundChain(o, outbound)
	outputChain(o, output)
	prerouting := &chain{name: "prerouting", hook: natPrerouting}
	for _, m := range interfaces(inInterface, o.InterfacesExcluded) {
		prerouting.rule(do(accept), m)
	}
	for _, m := range interfaces(inInterface, o.VirtualInterfaces) {
		prerouting.rule(toChain(goTo, "outbound"), m, tcp)
	}
	if o.Mode == Redirect {
		if m, ok := inbound(o, prerouting); ok {
			prerouting.rule(toPort(redirectTo, o.Inbound), m)
		}
	}
	out = append(out, prerouting)
	if o.RedirectDNS {
		out = append(out, dnsChains(o)...)
	}
	if o.Mode == TProxy {
		out = append(out, tproxyChains(o)...)
	}
	if o.DropInvalid {
		invalid := &chain{name: "stray", hook: strayPackets}
		invalid.rule(do(drop), match{field: invalidState})
		out = append(out, invalid)
	}
	return out
}

// proxyChain is for the proxy's own connections, which it accepts. One to the workload's own address is a call of the
// workload to itself through its proxy; proxyChain redirects it to the inbound port, like a call from outside. With
// TPROXY tproxyChains do that, and here is what Validate connects to alone.
func proxyChain(o *Options, c *chain) {
	if o.Mode == Redirect {
		for _, other := range []match{noLoopback4, noLoopback6} {
			c.rule(toPort(redirectTo, o.Inbound), outOfLo, other, notIn(tcpPort, dnsPort, o.Tunnel))
		}
	} else {
		for _, probed := range probes(o) {
			c.rule(toPort(redirectTo, o.Inbound), probed...)
		}
	}
	c.rule(do(accept))
}

// probes match the connections of Validate, by address family.
func probes(o *Options) [][]match {
	return lists.Map([]string{passthroughV4, passthroughV6}, func(address string) []match {
		to := from(address)
		to.field = destination
		return []match{outOfLo, to, is(tcpPort, uint32(o.Probe))}
	})
}

// outboundChain redirects connections to the proxy by address and port.
func outboundChain(o *Options, c *chain) {
	for _, m := range ranges(o.RangesExcluded.V4, o.RangesExcluded.V6) {
		c.rule(do(accept), m)
	}
	proxy := toPort(redirectTo, o.Outbound)
	switch {
	case o.Ranges.All, o.OutboundPorts.All:
		c.rule(proxy, tcp)
		return
	case len(o.OutboundPorts.List) > 0:
		c.rule(proxy, in(tcpPort, o.OutboundPorts.List))
	}
	for _, m := range ranges(o.Ranges.V4, o.Ranges.V6) {
		c.rule(proxy, m, tcp)
	}
}

// outputChain passes each connection opened in this namespace to one of the other chains, or accepts it.
func outputChain(o *Options, c *chain) {
	for _, m := range interfaces(outInterface, o.InterfacesExcluded) {
		c.rule(do(accept), m)
	}
	if len(o.OutboundPortsExcluded.List) > 0 {
		c.rule(do(accept), in(tcpPort, o.OutboundPortsExcluded.List))
	}
	if o.RedirectDNS {
		c.rule(toChain(jump, "dns"), tcpOrUDP, is(anyPort, dnsPort))
	}
	c.rule(do(accept), notTCP)
	c.rule(do(accept), outOfLo, from(passthroughV4))
	c.rule(do(accept), outOfLo, from(passthroughV6))
	for _, m := range owners(o) {
		c.rule(toChain(goTo, "proxy"), m)
	}
	c.rule(do(accept), outOfLo)
	c.rule(toChain(goTo, "outbound"))
}

// inbound adds rules that accept the inbound connections not to capture, and returns the match for those to capture;
// false if there are none.
func inbound(o *Options, c *chain) (m match, ok bool) {
	if !o.InboundPorts.All && len(o.InboundPorts.List) == 0 {
		return match{}, false
	}
	c.rule(do(accept), notTCP)
	c.rule(do(accept), is(tcpPort, uint32(o.Tunnel)))
	if !o.InboundPorts.All {
		return in(tcpPort, o.InboundPorts.List), true
	}
	if len(o.InboundPortsExcluded.List) > 0 {
		c.rule(do(accept), in(tcpPort, o.InboundPortsExcluded.List))
	}
	return tcp, true
}

// dnsChains redirect DNS queries to the DNS proxy, except the agent's own. The agent's queries are not tracked: one
// from a port that the application has just used would match the application's connection and be redirected too.
func dnsChains(o *Options) []*chain {
	dns := &chain{name: "dns"}
	raw := &chain{name: "own_dns", hook: beforeTracking}
	for _, owner := range owners(o) {
		dns.rule(do(back), owner)
		raw.rule(do(notrack), owner, is(udpPort, dnsPort))
	}
	agent := toPort(redirectTo, o.DNS)
	if o.CaptureAllDNS {
		dns.rule(agent, tcpOrUDP)
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
	for _, m := range ranges(v4, v6) {
		dns.rule(agent, m, tcpOrUDP)
	}
	return []*chain{dns, raw}
}

// tproxyChains pass inbound connections to the proxy with both addresses unchanged. The proxy's connections to the
// application, which have the client's source address, carry Mark. The application's answers get Mark from the
// connection, so that they are routed back to this machine. Calls of the workload to itself through its proxy carry
// Mark+1.
func tproxyChains(o *Options) []*chain {
	pass := func(v verb, mark uint32) []action { return []action{{verb: v, number: mark}, {verb: accept}} }
	inward := &chain{name: "inbound", hook: tproxyInbound}
	for _, m := range interfaces(inInterface, o.InterfacesExcluded) {
		inward.rule(do(accept), m)
	}
	inward.rule(do(accept), replies)
	inward.rule(pass(markConnection, o.Mark), intoLo, is(packetMark, o.Mark), tcp)
	inward.rule(do(accept), is(packetMark, o.Mark))
	inward.rule(do(accept), intoLo, isNot(packetMark, o.Mark+1))
	if m, ok := inbound(o, inward); ok {
		inward.rule(append(toPort(tproxyTo, o.Inbound), pass(markPacket, o.Mark)...), m)
	}
	out := &chain{name: "marks", hook: tproxyOutput}
	out.rule(do(accept), notTCP)
	out.rule(pass(markPacket, o.Mark), replies, is(connectionMark, o.Mark))
	out.rule(do(accept), replies)
	out.rule(do(accept), is(packetMark, o.Mark))
	for _, probed := range probes(o) {
		out.rule(do(accept), probed...)
	}
	for _, owner := range owners(o) {
		for _, other := range []match{noLoopback4, noLoopback6} {
			out.rule(pass(markPacket, o.Mark+1), outOfLo, other, owner, notIn(tcpPort, dnsPort, o.Tunnel))
		}
	}
	return []*chain{inward, out}
}

// owners matches the sockets of proxy and agent, with a match for each user and group.
func owners(o *Options) []match {
	users := lists.Map(o.UIDs, func(n uint32) match { return is(ownerUser, n) })
	return append(users, lists.Map(o.GIDs, func(n uint32) match { return is(ownerGroup, n) })...)
}
