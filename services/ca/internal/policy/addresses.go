package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// IPAddresses says which IP addresses a certificate carries besides the workload's SPIFFE ID, for clients that dial a
// workload by address and verify that address, as Istio's own agent does.
type IPAddresses map[Workload]addressList

// addressList is sorted and has no address twice.
type addressList []netip.Addr

// ParseIPAddresses reads rules of the form namespace/service-account=ip,ip.
func ParseIPAddresses(rules []string) (IPAddresses, error) {
	parsed := IPAddresses{}
	var errs []error
	for _, rule := range rules {
		who, list, ok := strings.Cut(rule, "=")
		if !ok || list == "" {
			errs = append(errs, fmt.Errorf("%q is not namespace/service-account=ip,ip", rule))
			continue
		}
		w, err := ParseWorkload(who)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for text := range strings.SplitSeq(list, ",") {
			ip, err := netip.ParseAddr(text)
			if err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() {
				errs = append(errs, fmt.Errorf("%q: %q is not the IP address of one host; write it without zone and port", rule, text))
				continue
			}
			parsed[w] = append(parsed[w], ip.Unmap())
		}
		slices.SortFunc(parsed[w], netip.Addr.Compare)
		parsed[w] = slices.Compact(parsed[w])
	}
	return parsed, errors.Join(errs...)
}

// are reports whether the addresses of a request are exactly these.
func (l addressList) are(asked []netip.Addr) bool {
	asked = slices.Clone(asked)
	for i := range asked {
		asked[i] = asked[i].Unmap()
	}
	slices.SortFunc(asked, netip.Addr.Compare)
	return slices.Equal(asked, []netip.Addr(l))
}

// forCertificate is the form that crypto/x509 takes; nil if there are none.
func (l addressList) forCertificate() []net.IP {
	var ips []net.IP
	for _, a := range l {
		ips = append(ips, a.AsSlice())
	}
	return ips
}
