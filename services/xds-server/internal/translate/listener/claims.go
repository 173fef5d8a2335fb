package listener

import (
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
)

// claims remembers what the filter chains of a listener match. Envoy refuses the whole listener if two chains overlap in a server name and a
// network; who comes first keeps what both want.
type claims map[string]bool

// append adds chains to a listener, without what older chains match already. A chain that takes every connection becomes the listener's
// default, unless it has one.
func (c claims) append(l *listenerv3.Listener, chains []l4chain) {
	for _, chain := range chains {
		if chain.match == nil {
			if l.GetDefaultFilterChain() == nil {
				l.DefaultFilterChain = chain.chain()
			}
			continue
		}
		if match, ok := c.take(chain.match); ok {
			l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{FilterChainMatch: match, Filters: chain.filters, TransportSocket: chain.socket})
		}
	}
}

// take claims a match; ok is false if nothing is left of it.
func (c claims) take(m *listenerv3.FilterChainMatch) (left *listenerv3.FilterChainMatch, ok bool) {
	left = proto.CloneOf(m)
	hosts := m.GetServerNames()
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	left.ServerNames = nil
	for _, host := range hosts {
		var places []string
		for _, to := range networks(m.GetPrefixRanges()) {
			for _, from := range networks(m.GetSourcePrefixRanges()) {
				places = append(places, fmt.Sprintf("%s %s %s %s", m.GetTransportProtocol(), host, to, from))
			}
		}
		if slices.ContainsFunc(places, func(p string) bool { return c[p] }) {
			continue
		}
		for _, p := range places {
			c[p] = true
		}
		ok = true
		if host != "" {
			left.ServerNames = append(left.ServerNames, host)
		}
	}
	return left, ok
}

func networks(ranges []*corev3.CidrRange) []string {
	if len(ranges) == 0 {
		return []string{""}
	}
	var out []string
	for _, r := range ranges {
		out = append(out, fmt.Sprintf("%s/%d", r.GetAddressPrefix(), r.GetPrefixLen().GetValue()))
	}
	return out
}
