// Package ipaddress compares and writes the IP addresses of services and their instances.
package ipaddress

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Family is the IP family of an address; empty for text that is no IP address.
func Family(address string) corev1.IPFamily {
	switch ip, err := netip.ParseAddr(address); {
	case err != nil:
		return ""
	case ip.Is4():
		return corev1.IPv4Protocol
	default:
		return corev1.IPv6Protocol
	}
}

// OfFamilies keeps the addresses of the families, in the order of the families; all if no family is named.
func OfFamilies(addresses []string, families []corev1.IPFamily) []string {
	if len(families) == 0 {
		return addresses
	}
	var out []string
	for _, f := range families {
		for _, a := range addresses {
			if Family(a) == f || Family(a) == "" && f == families[0] {
				out = append(out, a)
			}
		}
	}
	return out
}

// Canonical writes addresses and CIDRs in their shortest form, sorted, each once. A CIDR of one address becomes that
// address.
func Canonical(texts []string) []string {
	var out []string
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil {
			text = ip.String()
		} else if network, err := netip.ParsePrefix(text); err == nil {
			if text = network.Masked().String(); network.IsSingleIP() {
				text = network.Addr().String()
			}
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
