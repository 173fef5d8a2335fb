package listener

import (
	"fmt"
	"slices"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

func chainTo(t *testing.T, name string, subnets []string, hosts ...string) filterChain {
	t.Helper()
	networks, err := ranges(subnets)
	if err != nil {
		t.Fatal(err)
	}
	filters := []*listenerv3.Filter{
		{ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: typedconfig.Any(&tcpproxyv3.TcpProxy{StatPrefix: name})}}}
	if len(hosts) == 0 && len(networks) == 0 {
		return filterChain{filters: filters}
	}
	return filterChain{match: &listenerv3.FilterChainMatch{TransportProtocol: tlsTransport, ServerNames: hosts, PrefixRanges: networks},
		filters: filters}
}

// Envoy rejects a listener with two filter chains that match a connection equally well.
func TestFilterChainMatchesDoNotOverlap(t *testing.T) {
	l := &listenerv3.Listener{}
	usedMatches{}.addChains(l, []filterChain{
		chainTo(t, "first", nil, "a.com", "b.com"),
		chainTo(t, "second", nil, "b.com", "c.com"),
		chainTo(t, "nothing left", nil, "a.com"),
		chainTo(t, "other network", []string{"10.0.0.0/8"}, "a.com"),
		chainTo(t, "same network", []string{"10.1.2.3/8", "192.168.0.0/16"}, "a.com"),
		chainTo(t, "default", nil),
		chainTo(t, "second default", nil),
	})
	var got []string
	for _, c := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
		proxy := &tcpproxyv3.TcpProxy{}
		if err := c.GetFilters()[0].GetTypedConfig().UnmarshalTo(proxy); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(proxy.GetStatPrefix(), c.GetFilterChainMatch().GetServerNames()))
	}
	want := []string{"first[a.com b.com]", "second[c.com]", "other network[a.com]", "same network[a.com]", "default[]"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Connections to a CIDR range of some filter chains also find the filter chains of wider ranges.
func TestNarrowCIDRsRepeatWiderChains(t *testing.T) {
	l, taken := &listenerv3.Listener{}, usedMatches{}
	taken.addChains(l, []filterChain{
		chainTo(t, "narrow", []string{"10.1.0.0/16"}, "a.com"),
		chainTo(t, "wide", []string{"10.0.0.0/8", "fd00::/8"}, "a.com", "b.com"),
		chainTo(t, "anywhere", nil, "a.com", "c.com"),
		chainTo(t, "default", nil),
	})
	taken.repeatInNarrowNetworks(l)
	var got []string
	for _, c := range l.GetFilterChains() {
		proxy := &tcpproxyv3.TcpProxy{}
		if err := c.GetFilters()[0].GetTypedConfig().UnmarshalTo(proxy); err != nil {
			t.Fatal(err)
		}
		var to []string
		for _, r := range c.GetFilterChainMatch().GetPrefixRanges() {
			to = append(to, cidrText(r))
		}
		got = append(got, fmt.Sprint(proxy.GetStatPrefix(), c.GetFilterChainMatch().GetServerNames(), to))
	}
	want := []string{
		"narrow[a.com] [10.1.0.0/16]", "wide[a.com b.com] [10.0.0.0/8 fd00::/8]", "anywhere[a.com c.com] []",
		"wide[b.com] [10.1.0.0/16]", "anywhere[c.com] [10.1.0.0/16 10.0.0.0/8 fd00::/8]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestSubnetsBecomeCIDRs(t *testing.T) {
	got, err := ranges([]string{"10.1.2.3/8", "10.0.0.1", "fd00::/8"})
	if err != nil || len(got) != 3 || got[0].GetAddressPrefix() != "10.0.0.0" || got[1].GetPrefixLen().GetValue() != 32 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ranges([]string{"nonsense"}); err == nil {
		t.Error("nonsense is no subnet")
	}
}

// For every protocol, STRICT accepts mesh mTLS only, DISABLE none, and PERMISSIVE both.
func TestInboundChainsFollowTheMTLSMode(t *testing.T) {
	for number, name := range configv1.Protocol_name {
		p := configv1.Protocol(number)
		for _, mode := range []input.MTLSMode{input.Strict, input.Permissive, input.Disable} {
			with, without := false, false
			for _, v := range chainKinds(p, mode) {
				with = with || v.mtls
				without = without || !v.mtls
			}
			if wantWith, wantWithout := mode != input.Disable, mode != input.Strict; with != wantWith || without != wantWithout {
				t.Errorf("%s under %s: with mTLS %v, without %v", name, mode, with, without)
			}
		}
	}
}
