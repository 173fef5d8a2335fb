package document

import (
	"net/netip"
	"slices"
)

// IsReady tells what a Pod says.
func (d Document) IsReady() bool {
	for _, c := range d.List("status", "conditions") {
		if m, ok := c.(Tree); ok && m["type"] == "Ready" {
			return m["status"] == "True"
		}
	}
	return false
}

// PodIPs are the addresses of a Pod.
func (d Document) PodIPs() []netip.Addr {
	var ips []any
	for _, ip := range d.List("status", "podIPs") {
		if m, ok := ip.(Tree); ok {
			ips = append(ips, m["ip"])
		}
	}
	return Addresses(append(ips, d.Member("status", "podIP")))
}

// Addresses are the IP addresses among texts, each once.
func Addresses(texts []any) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		s, _ := text.(string)
		if ip, err := netip.ParseAddr(s); err == nil && !slices.Contains(out, ip) {
			out = append(out, ip)
		}
	}
	return out
}

// Selects tells whether a Service selects a Pod.
func (d Document) Selects(pod Document) bool {
	return pod.Kind() == "Pod" && pod.Namespace() == d.Namespace() && pod.HasLabels(d.Strings("spec", "selector"))
}

// Takes tells whether connections to a Service go to a Pod that it selects.
func (d Document) Takes(pod Document) bool {
	return pod.IsReady() || d.At("spec", "publishNotReadyAddresses") == true
}

// ClusterIPs are the addresses of a Service.
func (d Document) ClusterIPs() []netip.Addr {
	return Addresses(append([]any{d.Member("spec", "clusterIP")}, d.List("spec", "clusterIPs")...))
}

// WantsClusterIP tells whether it is a Service that has to be given an address, as Kubernetes does.
func (d Document) WantsClusterIP() bool {
	return d.Kind() == "Service" && d.Member("apiVersion") == "v1" && d.Member("spec", "clusterIP") == "" &&
		len(d.List("spec", "clusterIPs")) == 0 && d.Member("spec", "type") != "ExternalName"
}

// WithClusterIPs is a Service that names its addresses.
func (d Document) WithClusterIPs(ips []string) Document {
	spec, ok := d.Content["spec"].(Tree)
	if !ok {
		spec = Tree{}
		d.Content["spec"] = spec
	}
	all := make([]any, len(ips))
	for i, ip := range ips {
		all[i] = ip
	}
	spec["clusterIP"], spec["clusterIPs"] = ips[0], all
	return New(d.Content)
}

// HasFamily tells whether a Service has addresses of a family.
func (d Document) HasFamily(ip6 bool) bool {
	if families := d.List("spec", "ipFamilies"); len(families) > 0 && d.Member("spec", "ipFamilyPolicy") == "" {
		return slices.Contains(families, any(map[bool]string{false: "IPv4", true: "IPv6"}[ip6]))
	}
	own := d.ClusterIPs()
	return slices.ContainsFunc(own, func(ip netip.Addr) bool { return ip.Is6() == ip6 }) || len(own) == 0 && !ip6
}
