package listener

import (
	"fmt"
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
)

// usedMatches remembers what the filter chains of a listener match. Envoy refuses the whole listener if two chains overlap in a server name and a
// network; who comes first keeps what both want.
type usedMatches map[string]bool

// append adds chains to a listener, without what older chains match already. A chain that takes every connection becomes the listener's
// default, unless it has one.
func (c usedMatches) addChains(l *listenerv3.Listener, chains []filterChain) {
	for _, chain := range chains {
		if chain.match == nil {
			if l.GetDefaultFilterChain() == nil {
				l.DefaultFilterChain = chain.chain()
				chain.used()
			}
			continue
		}
		for _, match := range c.unused(chain.match) {
			chain.used()
			l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{FilterChainMatch: match, Filters: chain.filters, TransportSocket: chain.socket})
		}
	}
}

// complete adds, for the networks that some chains are for, what others serve there: Envoy decides for the narrowest network first, and does
// not come back to a wider one when nothing in it matches the rest. It is called when all chains are there.
func (c usedMatches) repeatInNarrowNetworks(l *listenerv3.Listener) {
	var narrow []netip.Prefix
	known := map[netip.Prefix]bool{}
	for _, chain := range l.GetFilterChains() {
		for _, p := range prefixes(chain.GetFilterChainMatch().GetPrefixRanges()) {
			if !known[p] {
				known[p] = true
				narrow = append(narrow, p)
			}
		}
	}
	for _, chain := range slices.Clone(l.GetFilterChains()) {
		if len(narrow) == 0 || chain.GetFilterChainMatch() == nil {
			continue
		}
		there := proto.CloneOf(chain.GetFilterChainMatch())
		wide := prefixes(there.GetPrefixRanges())
		there.PrefixRanges = nil
		for _, p := range narrow {
			if within(wide, p) {
				there.PrefixRanges = append(there.PrefixRanges, cidr(p))
			}
		}
		if len(there.GetPrefixRanges()) == 0 {
			continue
		}
		for _, match := range c.unused(there) {
			l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{
				FilterChainMatch: match, Filters: chain.GetFilters(), TransportSocket: chain.GetTransportSocket(),
			})
		}
	}
}

// holds tells whether a network lies within wider ones; none stand for all networks.
func within(ranges []netip.Prefix, p netip.Prefix) bool {
	return len(ranges) == 0 || slices.ContainsFunc(ranges, func(wide netip.Prefix) bool {
		return wide.Bits() < p.Bits() && wide.Contains(p.Addr())
	})
}

func prefixes(ranges []*corev3.CidrRange) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range ranges {
		if p, err := netip.ParsePrefix(cidrText(r)); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// take usedMatches a match and returns what is left of it: all in one where the same server names are left in all networks.
func (c usedMatches) unused(m *listenerv3.FilterChainMatch) []*listenerv3.FilterChainMatch {
	hosts := m.GetServerNames()
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	ranges := m.GetPrefixRanges()
	if len(ranges) == 0 {
		ranges = []*corev3.CidrRange{nil}
	}
	var out []*listenerv3.FilterChainMatch
	for _, to := range ranges {
		left := c.unusedServerNames(m, hosts, to)
		if len(left) == 0 {
			continue
		}
		if left[0] == "" {
			left = nil
		}
		if last := len(out) - 1; last >= 0 && slices.Equal(out[last].GetServerNames(), left) {
			out[last].PrefixRanges = append(out[last].PrefixRanges, to)
			continue
		}
		match := proto.CloneOf(m)
		match.ServerNames, match.PrefixRanges = left, nil
		if to != nil {
			match.PrefixRanges = []*corev3.CidrRange{to}
		}
		out = append(out, match)
	}
	return out
}

// hosts usedMatches the server names towards one network, and returns those that were free.
func (c usedMatches) unusedServerNames(m *listenerv3.FilterChainMatch, hosts []string, to *corev3.CidrRange) []string {
	sources := m.GetSourcePrefixRanges()
	if len(sources) == 0 {
		sources = []*corev3.CidrRange{nil}
	}
	var left []string
	for _, host := range hosts {
		var keys []string
		for _, from := range sources {
			keys = append(keys, fmt.Sprintf("%s %s %s %s %s", m.GetTransportProtocol(), m.GetApplicationProtocols(), host, cidrText(to), cidrText(from)))
		}
		if slices.ContainsFunc(keys, func(p string) bool { return c[p] }) {
			continue
		}
		for _, p := range keys {
			c[p] = true
		}
		left = append(left, host)
	}
	return left
}

func cidrText(r *corev3.CidrRange) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("%s/%d", r.GetAddressPrefix(), r.GetPrefixLen().GetValue())
}
