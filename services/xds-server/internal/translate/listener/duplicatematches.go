package listener

import (
	"fmt"
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
)

// usedMatches are the matches of a listener's filter chains. Envoy rejects a listener if two of its filter chains match
// the same server name in the same CIDR range; of two chains, the one that is added first keeps the match.
type usedMatches map[string]bool

// addChains adds filter chains to a listener, without the matches that earlier chains have. The first chain without a
// match becomes the default filter chain.
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
			l.FilterChains = append(l.FilterChains,
				&listenerv3.FilterChain{FilterChainMatch: match, Filters: chain.filters, TransportSocket: chain.socket})
		}
	}
}

// repeatInNarrowNetworks adds, for the CIDR ranges of some chains, copies of the other chains that match there: Envoy
// chooses the narrowest CIDR range first, and does not try a wider one if no chain of that range matches. Callers call
// it when all chains have been added.
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

// within reports whether a CIDR range is part of wider ones; no ranges mean all addresses.
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

// unused marks a match as used and returns the part of it that was unused: one match for all CIDR ranges with the same
// unused server names.
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

// unusedServerNames marks the server names for one CIDR range as used, and returns those that were unused.
func (c usedMatches) unusedServerNames(m *listenerv3.FilterChainMatch, hosts []string, to *corev3.CidrRange) []string {
	sources := m.GetSourcePrefixRanges()
	if len(sources) == 0 {
		sources = []*corev3.CidrRange{nil}
	}
	var left []string
	for _, host := range hosts {
		var keys []string
		for _, from := range sources {
			keys = append(keys, fmt.Sprintf("%s %s %s %s %s", m.GetTransportProtocol(), m.GetApplicationProtocols(), host, cidrText(to),
				cidrText(from)))
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
