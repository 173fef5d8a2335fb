package policy

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"fairlead.dev/pkg/lists"
)

// IPAddresses are the IP addresses that a workload's certificate carries besides its SPIFFE ID, for clients that dial
// an address and verify it; Istio's agent is one.
type IPAddresses map[Workload]addressList

// addressList is sorted and has no address twice.
type addressList []netip.Addr

// ParseIPAddresses reads rules of the form namespace/service-account=ip,ip.
func ParseIPAddresses(rules []string) (IPAddresses, error) {
	parsed, err := parseRules(rules, "namespace/service-account=ip,ip", func(text string) (netip.Addr, error) {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() {
			return netip.Addr{}, fmt.Errorf("%q is not the IP address of one host; write it without zone and port", text)
		}
		return ip.Unmap(), nil
	})
	addresses := IPAddresses{}
	for w, list := range parsed {
		slices.SortFunc(list, netip.Addr.Compare)
		addresses[w] = slices.Compact(list)
	}
	return addresses, err
}

// equal reports whether the addresses of a CSR are exactly these, in any order.
func (l addressList) equal(asked []netip.Addr) bool {
	asked = slices.Clone(asked)
	for i := range asked {
		asked[i] = asked[i].Unmap()
	}
	slices.SortFunc(asked, netip.Addr.Compare)
	return slices.Equal(asked, []netip.Addr(l))
}

// forCertificate converts the list for crypto/x509; nil if it is empty.
func (l addressList) forCertificate() []net.IP {
	return lists.Map(l, func(a netip.Addr) net.IP { return a.AsSlice() })
}
